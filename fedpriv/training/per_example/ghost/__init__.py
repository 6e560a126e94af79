"""Ghost norms: per-example gradients kept as factors that are never multiplied out."""
