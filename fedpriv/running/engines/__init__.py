"""Backends by name, and what makes one for a run."""
