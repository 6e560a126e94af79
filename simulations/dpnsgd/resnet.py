"""ResNet-20 with group norm, as a plain `nn.Module`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from fedpriv.models.images import conv3


class ResNet20(nn.Module):
    """Residual network for 32 x 32 colour images, 20 layers, group norm; 269,722 parameters.

    Three stages of three blocks with 16, 32 and 64 channels. Where a stage halves the image, the
    shortcut takes every other pixel and pads the channels with zeros, so that it has no parameters
    (option A of the reference). Group norm is used where the reference has batch norm, whose
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
        layers: list[nn.Module] = [conv3(3, 16), nn.GroupNorm(num_groups, 16), nn.ReLU()]
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
            conv3(width_in, width_out, self.stride), nn.GroupNorm(num_groups, width_out)
        )
        self.second = nn.Sequential(
            conv3(width_out, width_out), nn.GroupNorm(num_groups, width_out)
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        shortcut = inputs
        if self.added:
            half = self.added // 2
            shortcut = inputs[:, :, :: self.stride, :: self.stride]
            shortcut = functional.pad(shortcut, (0, 0, 0, 0, half, self.added - half))
        return torch.relu(shortcut + self.second(torch.relu(self.first(inputs))))
