"""Noise for the sum of a round."""

from fedpriv.noise.gaussian import gaussian

__all__ = ["gaussian"]
