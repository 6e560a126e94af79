"""Local training: of one user, and of many users at once."""
