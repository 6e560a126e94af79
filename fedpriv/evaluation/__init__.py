"""What released models reach on threads held out, with intervals: rows, gains, shares, users."""
