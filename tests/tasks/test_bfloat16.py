"""A model that answers in bfloat16, or computes with a table of it, is a model like another."""

import numpy as np
import torch
from torch import nn

from tests.tasks.people import started, task


class Half(nn.Module):
    """A linear model whose table and outputs are bfloat16, which NumPy has not."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 2)
        self.register_buffer("table", torch.randn(4).to(torch.bfloat16))

    def forward(self, x):
        return self.line(x * self.get_buffer("table").float()).to(torch.bfloat16)


def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs.float(), targets)


def test_outputs_and_buffers_of_bfloat16(tmp_path):
    made = task(module=Half, loss=loss)
    prepared = started(tmp_path / "run", made, rounds=1)
    summary = prepared.run()
    assert summary["rounds"] == 1 and np.isfinite(summary["accuracy_public"])
    params = made.init_params(prepared.root)
    assert made.outputs(params).dtype == np.float32
