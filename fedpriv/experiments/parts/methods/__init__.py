"""Methods: what is asked of private data, and what is made of the answers (option `method`)."""
