"""The privacy statement of a run in plain words, what it does not cover, and its verification."""
