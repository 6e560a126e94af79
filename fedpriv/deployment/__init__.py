"""What a deployment runs besides Flower's own programs."""
