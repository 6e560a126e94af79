"""Tasks: a roster, its users' examples, a model, and how it is measured."""
