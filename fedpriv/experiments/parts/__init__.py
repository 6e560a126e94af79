"""The parts that experiments are composed of: declared options, and how one is chosen."""
