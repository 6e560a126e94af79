"""A prepared corpus: sentences by user, rosters, and the views of rosters."""
