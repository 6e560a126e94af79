"""Empirical audits: what a run's own mechanism lets through, held against the ε that it states."""
