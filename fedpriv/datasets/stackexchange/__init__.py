"""Corpora of questions and answers: import, rosters, splits, and examples of tags and words."""
