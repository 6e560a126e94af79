"""Backends that bring `partial_sum` to the data in this process or on this cluster."""

from fedpriv.backends.backend import Backend
from fedpriv.backends.serial import SerialBackend

__all__ = ["Backend", "SerialBackend"]
