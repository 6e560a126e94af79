"""`fedpriv data`: what is here, where it came from, importing, rosters and parts."""
