"""What one user does, and many users at once."""
