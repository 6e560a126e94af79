"""Attacks on what a run released: measurements of a model, and no statement about a mechanism."""
