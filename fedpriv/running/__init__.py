"""The visible loop of a run, its folder, and runs started or resumed by name."""
