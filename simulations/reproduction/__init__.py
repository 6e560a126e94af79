"""Reproductions: a table or figure of a paper next to what its methods do here, tuned, accounted.

A `Reproduction` says which rows a table has, what the paper printed, and how each cell is run: a
grid of settings that is searched on a validation split, never on test, and then several seeds on
the test split. A `Figure` is the same with curves over the steps; a `Script` is
a program that makes a figure of its own. Every run is one line of a
JSON-lines file, found again by all its options, so a killed command goes on where it was and two
tables share what they have in common.
"""
