"""Where data come from: dumps, published files, made-up users; and how a corpus is found."""
