"""Noise with a memory: strategies, how far they let a user move their rows, and what they cost."""
