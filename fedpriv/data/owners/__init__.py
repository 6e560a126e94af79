"""Who owns an example, where more than one account wrote what it carries."""
