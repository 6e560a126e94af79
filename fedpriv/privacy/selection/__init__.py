"""Repeating a private run and keeping the best one: how often, and what that costs."""
