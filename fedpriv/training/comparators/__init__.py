"""What adaptive descent and bolt-on are compared with, on linear models in one place."""
