"""The Ray backend: long-lived workers, one broadcast and one partial sum each a round."""
