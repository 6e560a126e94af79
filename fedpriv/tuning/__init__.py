"""Private hyper-parameter tuning: a random number of trials, of which the best is released."""
