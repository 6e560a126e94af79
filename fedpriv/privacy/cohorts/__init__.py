"""How large cohorts should be, before anything is run."""
