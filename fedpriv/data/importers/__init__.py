"""Where data come from: dumps, published files, made-up users."""
