"""What a run promises and what it does not, in plain words."""
