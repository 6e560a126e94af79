"""The door of a run, the raw sums behind it and its secret state."""
