"""Options, and parts that they belong to."""
