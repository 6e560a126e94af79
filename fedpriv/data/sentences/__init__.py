"""Sentences of a corpus as they are kept: numbered words, grouped by user."""
