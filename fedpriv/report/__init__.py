"""Readers of a run folder: the report page, comparisons, and the exported model.

Everything here is post-processing of files that a run wrote. Nothing here can reach a user: the
room imports neither data nor training.
"""
