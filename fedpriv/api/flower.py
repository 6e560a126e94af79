"""`fedpriv.flower`: what a ServerApp and a ClientApp of your own take from fedpriv.

Loading it loads Flower, and none of the run loop, which nodes do not need.
"""

from fedpriv.backends.flower.client import bounded
from fedpriv.backends.flower.strategy import GridSettings, UserLevelStrategy

__all__ = ["GridSettings", "UserLevelStrategy", "bounded"]
