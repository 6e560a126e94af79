"""Empirical audits: lower bounds on the ε of a run's mechanism, compared with the stated ε."""
