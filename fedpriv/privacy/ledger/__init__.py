"""The ledger of a run: hash-chained lines, what they add up to, and their verification."""
