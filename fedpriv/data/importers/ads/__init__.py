"""Advertisements: whether a click is followed by a purchase."""
