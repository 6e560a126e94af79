"""Tag prediction: its params are those of the softmax regression that it is."""

import numpy as np

from fedpriv.experiments.catalogue import experiment
from fedpriv.models.linear import SoftmaxRegression
from fedpriv.rng import simulation
from fedpriv.training.local.module import module_params
