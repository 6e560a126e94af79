"""Recycling checkpoints of runs whose unit is an example: photographs and conversions."""
