"""`fedpriv.flower`: the parts of fedpriv for a custom ServerApp and ClientApp.

Loading it loads Flower, and none of the run loop, which nodes do not need.
"""

from fedpriv.backends.flower.client import bounded
from fedpriv.backends.flower.strategy import GridSettings, UserLevelStrategy

__all__ = ["GridSettings", "UserLevelStrategy", "bounded"]
