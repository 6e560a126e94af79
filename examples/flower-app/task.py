"""What server and nodes share: a model, a training function, and synthetic users."""

import numpy as np
import torch
from torch import nn

ROSTER = tuple(f"user-{number:02d}" for number in range(40))  # frozen, one opaque id a person


def model():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def users_of(context):
    """The users who live on this node: a phone hosts one, a hospital thousands."""
    part, of = context.node_config["partition-id"], context.node_config["num-partitions"]
    return ROSTER[int(part) :: int(of)]


def examples_of(users):
    """Synthetic examples of these users."""
    x = [np.random.default_rng(ROSTER.index(user)).normal(size=(30, 4)) for user in users]
    x = torch.tensor(np.concatenate(x), dtype=torch.float32)
    return x, (x[:, 0] > 0).long()


def fit(net, x, y, learning_rate):
    optimizer = torch.optim.SGD(net.parameters(), lr=learning_rate)
    for batch in torch.arange(len(x)).split(10):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x[batch]), y[batch])
        loss.backward()
        optimizer.step()
    return loss.item()
