"""Experiments: functions that return a frozen `Experiment`, one file for each paper or study."""

from simulations import tags

EXPERIMENTS = (*tags.EXPERIMENTS,)

#: Modules with tables of papers, loaded when one is asked for.
REPRODUCTIONS = (
    "simulations.imdb_tables",
    "simulations.lstm",
    "simulations.mnist",
    "simulations.pooled_tags",
)
