"""The clients' local steps and nothing else: forward and backward passes and SGD, in one process.

No tool: the params of a round are copied into the resident module for every user of the cohort,
and what was trained is dropped. Nothing is bounded, added, noised or kept. Freed memory stays in
the process, as it does in fedpriv's: without that a step of the CNN takes half as long again.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

import cifar_job
import dense_client
import numpy as np
import torch
from protocol import Gate, Job
from tag_data import TagUsers
from torch import nn

from fedpriv.training.devices import keep_freed_memory

GATE = Gate()
JOB = Job.from_json(sys.argv[1])


def train_cnn(module: nn.Module, user: tuple[np.ndarray, np.ndarray]) -> None:
    """Train in place on one user's images: one epoch of plain SGD."""
    images, labels = (torch.from_numpy(array) for array in user)
    optimizer = torch.optim.SGD(module.parameters(), lr=JOB.learning_rate)
    order = torch.randperm(len(labels))
    for batch in order.split(JOB.batch_size):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(images[batch]), labels[batch]).backward()
        optimizer.step()


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    keep_freed_memory()
    users: Any
    module: Any
    if JOB.client == "cnn":
        users = list(cifar_job.load_users(JOB.data).values())
        module, num_users = cifar_job.make_cnn().train(), len(users)
    else:
        users = TagUsers(JOB.data)
        module, num_users = dense_client.make_model(users.num_words, users.num_tags), len(users)
    start = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    rng = np.random.default_rng(0)
    GATE.ready(torch=version("torch"), numpy=version("numpy"), python=sys.version.split()[0])
    while GATE.passes():
        for user in rng.choice(num_users, JOB.cohort, replace=False):
            module.load_state_dict(start)
            if JOB.client == "cnn":
                train_cnn(module, users[user])
            else:
                dense_client.local_sgd(
                    module,
                    users.examples(int(user)),
                    learning_rate=JOB.learning_rate,
                    batch_size=JOB.batch_size,
                )


if __name__ == "__main__":
    main()
