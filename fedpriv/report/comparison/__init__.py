"""Several runs side by side: grouped by seed, in sections that can be read against each other."""
