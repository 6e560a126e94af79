"""The door to private data, the loop of rounds, the run folder, and runs started or resumed."""
