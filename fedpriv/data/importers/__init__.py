"""Where data come from: dumps, published files, synthetic users."""
