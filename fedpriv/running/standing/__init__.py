"""How a deployed run stands, written down for whoever looks after it."""
