"""Carriers that bring `partial_sum` to the data in this process or on this cluster."""

from fedpriv.engine.carrier import Carrier
from fedpriv.engine.serial import SerialCarrier

__all__ = ["Carrier", "SerialCarrier"]
