"""Classifiers of images and feature vectors, as plain `nn.Module`s."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn


class DigitClassifier(nn.Module):
    """Two convolutions and two dense layers for 28 x 28 digits, 26,010 parameters.

    The papers do not say which classifier of MNIST they train. This is the size that private
    learning is usually shown on (16 filters of 8 x 8 and 32 of 4 x 4, 32 hidden units), with tanh,
    whose bounded outputs keep gradients from growing.

    Reference: Papernot et al., "Tempered Sigmoid Activations for Deep Learning with Differential
    Privacy" (2021), table 1.
    """

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 8, stride=2, padding=3),
            nn.Tanh(),
            nn.MaxPool2d(2, 1),
            nn.Conv2d(16, 32, 4, stride=2),
            nn.Tanh(),
            nn.MaxPool2d(2, 1),
            nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Linear(32 * 4 * 4, 32), nn.Tanh(), nn.Linear(32, num_classes))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return logits of images `(n, 784)` or `(n, 1, 28, 28)`."""
        return self.head(self.features(inputs.reshape(-1, 1, 28, 28)))


class SmallPhotographClassifier(nn.Module):
    """Three convolutions with group norm for 32 x 32 photographs; 14,746 parameters of ten classes.

    Filters of 3 x 3, 16, 32 and 32 of them, each followed by group norm, ReLU and max pooling; the
    mean over what is left of the image goes into one dense layer. Few parameters, because noise of
    user-level privacy grows with the square root of their number.

    Args:
        num_classes: Of the last layer.
    """

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width_in, width in pairwise((3, 16, 32, 32)):
            norm = nn.GroupNorm(8, width)
            layers += [conv3(width_in, width), norm, nn.ReLU(), nn.MaxPool2d(2)]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(32, num_classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return logits of images `(n, 3, 32, 32)`."""
        return self.head(self.features(inputs).mean((2, 3)))


def conv3(width_in: int, width_out: int, stride: int = 1) -> nn.Conv2d:
    """Return a 3 x 3 convolution that keeps the size of its input at stride 1, without bias."""
    return nn.Conv2d(width_in, width_out, 3, stride=stride, padding=1, bias=False)


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


class LogitRegression(nn.Module):
    """A linear model of two classes, `inputs @ weight + bias`, with the weight `(num_inputs,)`."""

    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_inputs))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return one logit each, `(n,)`, of dense inputs `(n, num_inputs)`."""
        return inputs @ self.weight + self.bias
