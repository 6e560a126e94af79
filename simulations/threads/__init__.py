"""Methods compared on threads held out: their settings, training and keeping, and the page."""
