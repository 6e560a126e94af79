"""Features of single examples: rows of words, bags of words, scales; data sets made of them."""
