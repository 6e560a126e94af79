"""Importers of dumps and published files: fetched, found, read and written as prepared corpora."""
