"""Accuracy of public examples and threads alone, trained on without noise."""
