"""The promise of a run: a mechanism, a budget, a relation and a δ."""
