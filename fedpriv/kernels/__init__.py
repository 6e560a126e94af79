"""Compiled loops over plain arrays: where memory traffic decides, one pass each.

Compiled by Numba when first called, and kept on disk. NumPy makes a pass over memory for every
operation and SciPy one for every product; a round at five million parameters is bound by such
passes. Every loop releases the interpreter's lock. Importing a kernel loads Numba (half a second),
so it is imported where it is called.
"""
