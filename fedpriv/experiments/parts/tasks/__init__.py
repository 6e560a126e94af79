"""Tasks that declare options of their own."""
