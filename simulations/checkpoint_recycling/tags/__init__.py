"""Recycling checkpoints of tag models of real threads, by user: aggregates, shift, uncertainty."""
