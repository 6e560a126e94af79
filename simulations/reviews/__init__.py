"""Labelled reviews, which only studies train on: IMDB, Amazon, SST-2, and a model of such texts."""
