"""Data sets: files, corpora of users, features, importers; and how a corpus is found."""
