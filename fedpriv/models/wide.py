"""Wide residual networks for small photographs, and several views of each image at once."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

_GROUPS = 16


class WideResNet(nn.Module):
    """WRN-d-k for 32 x 32 colour images, with group norm and standardised weights.

    De et al. train WRN-16-4 and WRN-40-4 by DP-SGD in this form: pre-activation blocks, no batch
    norm, whose statistics mix examples, and convolutions whose weights are standardised for each
    output channel. WRN-16-4 has 2,751,146 parameters with ten classes.

    References: Zagoruyko & Komodakis, "Wide Residual Networks" (2016); De et al., "Unlocking
    High-Accuracy Differentially Private Image Classification through Scale" (2022), section 3.

    Args:
        num_classes: Of the last layer.
        depth: 6 n + 4 for n blocks a stage.
        width: Channels of the three stages are 16, 32 and 64 times this.

    Raises:
        ValueError: If the depth is no such number.
    """

    def __init__(self, num_classes: int = 10, *, depth: int = 16, width: int = 4) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise ValueError(f"depth {depth!r} is not 6 n + 4; use 10, 16, 22, 28 or 40")
        layers: list[nn.Module] = [_Conv(3, 16)]
        channels = 16
        for stage, wider in enumerate((16 * width, 32 * width, 64 * width)):
            for block in range((depth - 4) // 6):
                stride = 2 if stage and not block else 1
                layers.append(_Block(channels, wider, stride))
                channels = wider
        self.blocks = nn.Sequential(*layers, nn.GroupNorm(_GROUPS, channels), nn.ReLU())
        self.head = nn.Linear(channels, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits of images `(n, 3, 32, 32)`."""
        return self.head(self.blocks(images).mean((2, 3)))


class _Conv(nn.Module):
    """A 3 x 3 or 1 x 1 convolution whose weights have mean 0 and variance 1 / fan-in, and a gain.

    Reference: Qiao et al., "Weight Standardization" (2019); the gain as in Brock et al. (2021).
    """

    def __init__(self, width_in: int, width_out: int, size: int = 3, stride: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width_out, width_in, size, size))
        self.gain = nn.Parameter(torch.ones(width_out))
        self.stride, self.padding = stride, size // 2
        nn.init.kaiming_normal_(self.weight)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        flat = self.weight.flatten(1)
        centred = flat - flat.mean(dim=1, keepdim=True)
        spread = (flat.shape[1] * centred.square().mean(dim=1, keepdim=True) + 1e-4).rsqrt()
        weight = (centred * spread * self.gain[:, None]).view_as(self.weight)
        return functional.conv2d(images, weight, stride=self.stride, padding=self.padding)


class _Block(nn.Module):
    """Norm, ReLU, convolution, twice; the shortcut is a convolution where the shape changes."""

    def __init__(self, width_in: int, width_out: int, stride: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(_GROUPS, width_in)
        self.first = _Conv(width_in, width_out, stride=stride)
        self.middle = nn.GroupNorm(_GROUPS, width_out)
        self.second = _Conv(width_out, width_out)
        same = width_in == width_out and stride == 1
        self.shortcut = None if same else _Conv(width_in, width_out, size=1, stride=stride)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        active = torch.relu(self.norm(images))
        kept = images if self.shortcut is None else self.shortcut(active)
        return kept + self.second(torch.relu(self.middle(self.first(active))))


class Views(nn.Module):
    """A classifier that sees several views of each image while it trains (multiplicity).

    With `views_loss` an example's loss is the mean over its views, and so is its gradient, *before*
    it is bounded: one example is one contribution, whatever the multiplicity. De et al. draw views
    in each step. Here they are a fixed list, the image itself first, then shifts by up to four
    pixels (edges reflected), every other one mirrored: nothing is drawn, so that per-example
    gradients keep their fastest backend.

    Args:
        module: Of images `(n, 3, height, width)` to logits.
        multiplicity: K, from 1 to 16.

    Raises:
        ValueError: If K is out of range.
    """

    def __init__(self, module: nn.Module, multiplicity: int) -> None:
        super().__init__()
        if not 1 <= multiplicity <= len(_SHIFTS):
            raise ValueError(f"multiplicity {multiplicity!r} must be 1 to {len(_SHIFTS)}")
        self.module, self.multiplicity = module, multiplicity

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits `(n, classes)`, or `(n, K, classes)` while it trains with K above 1."""
        if not self.training or self.multiplicity == 1:
            return self.module(images)
        seen = torch.stack(views(images, self.multiplicity), dim=1)
        return self.module(seen.flatten(0, 1)).unflatten(0, (len(images), self.multiplicity))


def views(images: torch.Tensor, number: int) -> list[torch.Tensor]:
    """Return the first views of images `(n, channels, height, width)`, each of that shape."""
    height, width = images.shape[2:]
    padded = functional.pad(images, (4, 4, 4, 4), mode="reflect")
    found = []
    for place, (down, right) in enumerate(_SHIFTS[:number]):
        view = padded[:, :, 4 + down : 4 + down + height, 4 + right : 4 + right + width]
        found.append(view.flip(3) if place % 2 else view)
    return found


def views_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy over examples and their views.

    Args:
        logits: `(n, classes)` or `(n, K, classes)`.
        labels: int64 `(n,)`.
    """
    if logits.ndim == 2:
        return functional.cross_entropy(logits, labels)
    repeated = labels[:, None].expand(logits.shape[:2])
    return functional.cross_entropy(logits.flatten(0, 1), repeated.flatten())


# Down and right, in pixels; the first two are the image and its mirror image.
_SHIFTS = (
    (0, 0), (0, 0), (4, 4), (-4, -4), (-4, 4), (4, -4), (2, 0), (-2, 0),
    (0, 2), (0, -2), (4, 0), (-4, 0), (0, 4), (0, -4), (2, 2), (-2, -2),
)  # fmt: skip
