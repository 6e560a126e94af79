"""Sentences as sequences of words, seen through a roster: what next-word prediction learns from."""
