"""DP-AGD against what its paper compares it with."""
