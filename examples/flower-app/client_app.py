import numpy as np
import torch
from flwr.clientapp import ClientApp
from shared import ROSTER, examples_of, model

import fedpriv as fp

app = ClientApp()


def users(context):  # those of this node: a phone hosts one, a hospital thousands
    part, of = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    return {user_id: examples_of(user_id) for user_id in ROSTER[part::of]}


@fp.flower.bounded(app, users=users)
def train(params, examples, rng):
    net = fp.load_params(model(), params)
    x, y = examples
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
    for batch in np.array_split(rng.permutation(len(x)), 3):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
        optimizer.step()
    return fp.module_params(net)
