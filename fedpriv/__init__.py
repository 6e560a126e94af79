"""fedpriv: federated learning with user-level differential privacy.

The same plan, the same round and the same users, simulated in one process or deployed on Flower.
"""

__version__ = "0.1.0"
