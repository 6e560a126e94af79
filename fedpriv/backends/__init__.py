"""Backends that bring the sum over users to the data in this process or on this cluster."""

from fedpriv.backends.backend import Backend, SerialBackend

__all__ = ["Backend", "SerialBackend"]
