"""Low-rank adapters (LoRA) of linear layers: a frozen weight plus a product of two thin matrices.

Sources: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2021); with the first
matrix frozen, Sun et al., "Improving LoRA in Privacy-preserving Federated Learning" (2024,
FFA-LoRA): noise then enters the product once, and not as a product of two noises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


class LowRank(nn.Module):
    """A frozen linear layer W x + c, plus `scale` B A x.

    A is drawn as in `nn.Linear`, B is zero: at first it is the frozen layer.

    Args:
        layer: `nn.Linear`, or `Conv1D` of transformers, whose weight is transposed.
        rank: Rows of A, columns of B.
        scale: Factor of the product.
        freeze_a: Whether A stays as it is drawn.
    """

    def __init__(self, layer: nn.Module, rank: int, scale: float, freeze_a: bool) -> None:
        super().__init__()
        size_in, size_out = _sizes(layer)
        if not 1 <= rank <= min(size_in, size_out):
            raise ValueError(
                f"rank {rank!r} of a matrix {size_out} x {size_in}: give 1 to "
                f"{min(size_in, size_out)}"
            )
        self.layer, self.scale = layer, scale
        self.lora_a = nn.Linear(size_in, rank, bias=False)
        self.lora_b = nn.Linear(rank, size_out, bias=False)
        nn.init.zeros_(self.lora_b.weight)
        self.layer.requires_grad_(False)
        self.lora_a.requires_grad_(not freeze_a)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `(..., size_out)` of `(..., size_in)`."""
        return self.layer(x) + self.scale * self.lora_b(self.lora_a(x))

    @torch.no_grad()
    def merged(self) -> nn.Module:
        """Return the layer, with the product added to a copy of its weight."""
        layer: Any = self.layer
        product = self.scale * self.lora_b.weight @ self.lora_a.weight
        added = product if isinstance(layer, nn.Linear) else product.t()
        layer.weight = nn.Parameter(layer.weight + added, requires_grad=False)
        return layer


def add_adapters(
    module: nn.Module,
    rank: int,
    matrices: Sequence[str] | None = None,
    *,
    freeze_a: bool = False,
    scale: float = 2.0,
) -> nn.Module:
    """Freeze a module, put low-rank adapters on linear layers of it, and return it.

    Args:
        module: Changed in place.
        rank: Of every adapter.
        matrices: Names of layers, or ends of names such as "query" or "output.dense"; None for
            every linear layer of the blocks (those in an `nn.ModuleList`), that is attention and
            feed-forward, and not embeddings, poolers and heads.
        freeze_a: Whether only B is trained (FFA-LoRA).
        scale: Factor of B A; alpha / rank in the paper.

    Raises:
        ValueError: If no layer has such a name, or the rank is not between 1 and a matrix's own.
    """
    linear = {n: m for n, m in module.named_modules() if n and _is_linear(m)}
    if matrices is None:
        lists = tuple(f"{n}." for n, m in module.named_modules() if isinstance(m, nn.ModuleList))
        chosen = [name for name in linear if name.startswith(lists)]
    else:
        ends = tuple(f".{end}" for end in matrices)
        chosen = [name for name in linear if f".{name}".endswith(ends)]
        unknown = [e for e in ends if not any(f".{name}".endswith(e) for name in linear)]
        if unknown:
            known = sorted({name.rpartition(".")[2] for name in linear})
            raise ValueError(
                f"no linear layer is called {', '.join(e[1:] for e in unknown)}; matrices end in "
                f"{', '.join(known)}"
            )
    if not chosen:
        raise ValueError("the module has no linear layer to adapt; name some by matrices")
    module.requires_grad_(False)
    for name in chosen:
        module.set_submodule(name, LowRank(linear[name], rank, scale, freeze_a))
    return module


def merge_adapters(module: nn.Module) -> nn.Module:
    """Add every adapter's product to the weight below it, in place; return the module.

    It has the names and shapes that it had before `add_adapters`, and the outputs of after.
    """
    for name, layer in list(module.named_modules()):
        if isinstance(layer, LowRank):
            module.set_submodule(name, layer.merged())
    return module


def check_adapters(module: nn.Module) -> None:
    """Refuse a module with adapters of which none is trained; one without any is no matter of this.

    Raises:
        ValueError: With the name of the first.
    """
    adapters = {name: m for name, m in module.named_modules() if isinstance(m, LowRank)}
    halves = [half for m in adapters.values() for half in (m.lora_a, m.lora_b)]
    if halves and not any(half.weight.requires_grad for half in halves):
        raise ValueError(
            f"all adapters are frozen, '{next(iter(adapters))}.lora_a.weight' (and "
            f"{len(halves) - 1} more): a run would train the head alone, if anything; train some "
            "(requires_grad_(True)), or have none: rank=0 trains the head alone, and "
            "merge_adapters keeps what they have learnt"
        )


def _is_linear(layer: nn.Module) -> bool:
    """Return whether a layer is `nn.Linear` or transformers' `Conv1D`, which nothing imports."""
    return isinstance(layer, nn.Linear) or (
        type(layer).__name__ == "Conv1D" and "nf" in vars(layer)
    )


def _sizes(layer: Any) -> tuple[int, int]:
    rows, columns = layer.weight.shape
    return (columns, rows) if isinstance(layer, nn.Linear) else (rows, columns)
