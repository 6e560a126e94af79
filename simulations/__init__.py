"""Experiments: functions that return a frozen `Experiment`, one file for each paper or study."""

from simulations import tags

EXPERIMENTS = (*tags.EXPERIMENTS,)
