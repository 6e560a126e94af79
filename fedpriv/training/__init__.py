"""Learning: what one user does, and what the server does with the sum."""
