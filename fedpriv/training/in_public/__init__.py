"""Learning from public examples alone, at ε = 0: the public start and the public-only row."""
