"""Bolt-on against methods that add noise to every step."""
