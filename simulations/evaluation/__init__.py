"""Results on held-out threads: baselines, bootstrap intervals, differences and tables."""
