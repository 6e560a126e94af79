"""Theorems of the five papers as numbers."""
