"""Linear models on data of few columns, as studies of adaptive descent and bolt-on want them."""
