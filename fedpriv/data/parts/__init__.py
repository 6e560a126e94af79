"""A corpus cut into parts: what a server, and what each node of a deployment may hold."""
