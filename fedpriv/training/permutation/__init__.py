"""Permutation SGD without noise: how far one example or user moves where it ends."""
