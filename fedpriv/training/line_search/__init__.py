"""Losses at several points along a released direction, so that a step size can be chosen."""
