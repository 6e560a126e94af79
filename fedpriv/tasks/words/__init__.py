"""Next-word prediction: tokens, measures, trivial rules, and the task."""
