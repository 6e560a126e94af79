"""Ready-made experiments, found by name: one module a task."""
