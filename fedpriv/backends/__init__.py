"""Carriers that bring `partial_sum` to the data in this process or on this cluster."""

from fedpriv.backends.backend import Carrier
from fedpriv.backends.serial import SerialCarrier

__all__ = ["Carrier", "SerialCarrier"]
