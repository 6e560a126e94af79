"""What the public examples and threads alone reach, trained on without any noise."""
