"""Correlated noise over rounds (the matrix mechanism): binary tree, banded and BLT strategies."""
