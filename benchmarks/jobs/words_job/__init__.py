"""Next-word prediction in these benchmarks' words: the users, and the client of every tool."""
