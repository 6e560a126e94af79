"""Privacy accounting: samplers, events and their ε, plans, the ledger and the statement."""
