"""The promise: who is drawn, what a charge costs, the plan, the ledger and the statement."""
