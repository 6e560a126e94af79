"""Classifiers and autoencoders of images and feature vectors, as plain `nn.Module`s."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional


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
        num_groups: Of every group norm; divides 16.
    """

    def __init__(self, num_classes: int = 10, num_groups: int = 8) -> None:
        super().__init__()
        if num_groups < 1 or 16 % num_groups:
            raise ValueError(f"num_groups {num_groups!r} must divide 16")
        layers: list[nn.Module] = []
        for width_in, width in pairwise((3, 16, 32, 32)):
            norm = nn.GroupNorm(num_groups, width)
            layers += [_conv3(width_in, width), norm, nn.ReLU(), nn.MaxPool2d(2)]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(32, num_classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return logits of images `(n, 3, 32, 32)`."""
        return self.head(self.features(inputs).mean((2, 3)))


class ResNet20(nn.Module):
    """Residual network for 32 x 32 colour images, 20 layers, group norm; 269,722 parameters.

    Three stages of three blocks with 16, 32 and 64 channels. Where a stage halves the image, the
    shortcut takes every other pixel and pads the channels with zeros, so that it has no parameters
    (option A of the reference). Group norm stands where the reference has batch norm, whose
    statistics mix examples.

    Reference: He et al., "Deep Residual Learning for Image Recognition" (2016), section 4.2.

    Args:
        num_classes: Of the last layer.
        num_groups: Of every group norm; divides 16.
    """

    def __init__(self, num_classes: int = 10, num_groups: int = 16) -> None:
        super().__init__()
        if num_groups < 1 or 16 % num_groups:
            raise ValueError(f"num_groups {num_groups!r} must divide 16")
        layers: list[nn.Module] = [_conv3(3, 16), nn.GroupNorm(num_groups, 16), nn.ReLU()]
        width = 16
        for stage in (16, 32, 64):
            for _ in range(3):
                layers.append(_Block(width, stage, num_groups))
                width = stage
        self.blocks = nn.Sequential(*layers)
        self.head = nn.Linear(width, num_classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return logits of images `(n, 3, 32, 32)`."""
        return self.head(self.blocks(inputs).mean((2, 3)))


class _Block(nn.Module):
    """Two convolutions and a shortcut; `width_out` is `width_in` or twice it."""

    def __init__(self, width_in: int, width_out: int, num_groups: int) -> None:
        super().__init__()
        self.stride = 1 if width_in == width_out else 2
        self.added = width_out - width_in
        self.first = nn.Sequential(
            _conv3(width_in, width_out, self.stride), nn.GroupNorm(num_groups, width_out)
        )
        self.second = nn.Sequential(
            _conv3(width_out, width_out), nn.GroupNorm(num_groups, width_out)
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        shortcut = inputs
        if self.added:
            half = self.added // 2
            shortcut = inputs[:, :, :: self.stride, :: self.stride]
            shortcut = functional.pad(shortcut, (0, 0, 0, 0, half, self.added - half))
        return torch.relu(shortcut + self.second(torch.relu(self.first(inputs))))


def _conv3(width_in: int, width_out: int, stride: int = 1) -> nn.Conv2d:
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


_WIDTHS = (784, 1000, 500, 250, 30)


class Autoencoder(nn.Module):
    """Dense layers down to a code and back, 784-1000-500-250-30-250-500-1000-784.

    Sigmoids everywhere except on the code, which is linear. 2,837,314 parameters at these widths;
    trained on the mean squared error between output and input.

    Args:
        widths: Of the layers, from the image to the code.
        gain: Weights start uniform with variance gain² 2 / (in + out), biases at zero. At 1 the
            image is lost on its way through seven sigmoids of slope 1/4, and training stays for
            epochs at the mean image; at 4 what goes in comes through.

    Reference: Hinton and Salakhutdinov, "Reducing the Dimensionality of Data with Neural Networks"
    (2006); these sizes are those of Li et al. (AdaDPS, 2022); the start: Glorot and Bengio,
    "Understanding the difficulty of training deep feedforward neural networks" (2010), eq. 16.
    """

    def __init__(self, widths: Sequence[int] = _WIDTHS, gain: float = 1.0) -> None:
        super().__init__()
        down, up = list(pairwise(widths)), list(pairwise(tuple(reversed(widths))))
        self.encoder = _sigmoid_layers(down, gain, last=False)
        self.decoder = _sigmoid_layers(up, gain, last=True)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return reconstructions in (0, 1) of inputs `(n, 784)`."""
        return self.decoder(self.encoder(inputs))


def _sigmoid_layers(shapes: list[tuple[int, int]], gain: float, *, last: bool) -> nn.Sequential:
    """Return dense layers, a sigmoid after each but, on request, the last."""
    layers: list[nn.Module] = []
    for number, (width_in, width_out) in enumerate(shapes, 1):
        dense = nn.Linear(width_in, width_out)
        nn.init.xavier_uniform_(dense.weight, gain)
        nn.init.zeros_(dense.bias)
        layers.append(dense)
        if last or number < len(shapes):
            layers.append(nn.Sigmoid())
    return nn.Sequential(*layers)
