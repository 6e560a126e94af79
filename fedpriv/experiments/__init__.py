"""Experiments: what they are made of, their options, and how they are found by name."""
