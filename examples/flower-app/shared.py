import numpy as np
import torch
from torch import nn

ROSTER = tuple(f"user-{number:02d}" for number in range(40))  # frozen, opaque, one id a person


def model():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def examples_of(user_id):
    x = np.random.default_rng(ROSTER.index(user_id)).normal(size=(30, 4)).astype(np.float32)
    return torch.from_numpy(x), torch.from_numpy((x[:, 0] > 0).astype(np.int64))
