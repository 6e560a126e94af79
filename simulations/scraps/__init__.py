"""What recycling checkpoints does on convex problems: synthetic, small, and measured."""
