"""Studies of recycling checkpoints, on convex problems and on real threads."""
