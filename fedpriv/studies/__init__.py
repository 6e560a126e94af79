"""Studies: many trials of experiments, kept, found again and shown; and private selection."""
