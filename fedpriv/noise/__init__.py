"""Noise for the sum of a round, and what makes an answer of the two."""
