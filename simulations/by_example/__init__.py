"""Experiments whose unit is an example: of one machine, so that they are in no Flower bundle."""

from simulations.by_example import conversions, images

EXPERIMENTS = (*images.EXPERIMENTS, *conversions.EXPERIMENTS)
