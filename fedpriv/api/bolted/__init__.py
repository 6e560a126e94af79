"""Permutation SGD of one's own, released once with noise that is added at its end."""
