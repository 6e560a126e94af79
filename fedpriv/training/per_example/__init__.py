"""Gradients of single examples, bounded and summed."""
