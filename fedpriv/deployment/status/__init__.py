"""How a run folder stands, for whoever looks after it."""
