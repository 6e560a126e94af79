"""Settings from the data's size: the synthetic corpora and the runs that the rule was fitted on."""
