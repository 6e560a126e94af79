"""A node's own data: files of its own people, read where they lie, under ids that name nobody."""
