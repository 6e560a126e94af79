"""Linear models."""

from __future__ import annotations

import torch
from torch import nn


class SoftmaxRegression(nn.Module):
    """Multinomial logistic regression, `inputs @ kernel + bias`.

    The kernel is `(num_inputs, num_classes)`, one row for each word, so that a user's update is
    sparse by rows. 10,000 words and 500 tags make 5,000,500 parameters.
    """

    def __init__(self, num_inputs: int, num_classes: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.zeros(num_inputs, num_classes))
        self.bias = nn.Parameter(torch.zeros(num_classes))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return logits `(n, num_classes)` of dense inputs `(n, num_inputs)`."""
        return inputs @ self.kernel + self.bias
