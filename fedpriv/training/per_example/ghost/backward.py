"""Per-example gradients of a whole module by one forward and one backward pass over the batch.

The batch goes through the module once. Each layer's input is kept, and the gradients by the
layers' *outputs* are asked for, so that autograd never multiplies out a gradient by a parameter.
Every example's loss is computed alone (`torch.vmap`), whatever the loss does with a batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from fedpriv.rng import Key
from fedpriv.training.per_example.ghost.layers import NoRuleError, Rule, rule_of
from fedpriv.training.per_example.ghost.masks import ExampleMasks
from fedpriv.training.per_example.ghost.norms import Factor, Untouched

Loss = Callable[[Tensor, Tensor], Tensor]


class FactoredPass:
    """Per-example gradients by the rules of layers.

    Raises:
        NoRuleError: If a parameter belongs to no layer with a rule, or to two layers.
    """

    def __init__(self, module: nn.Module, loss: Loss, masks: ExampleMasks) -> None:
        self._module, self._loss, self._masks = module, loss, masks
        self._names = [n for n, p in module.named_parameters() if p.requires_grad]
        self._rules: dict[str, tuple[nn.Module, Rule]] = {}
        named = module.named_parameters(remove_duplicate=False)
        owned = [n for n, p in named if p.requires_grad]
        for name in owned:
            owner = name.rpartition(".")[0]
            layer = module.get_submodule(owner)
            rule = rule_of(layer)
            if rule is None or name not in self._names:
                raise NoRuleError(f"no rule for {name!r} of a {type(layer).__name__}")
            self._rules[owner] = (layer, rule)

    def gradients(self, x: Tensor, y: Tensor, keys: Sequence[Key] | None) -> dict[str, Factor]:
        """Return the gradients of a chunk's examples, at the module's own parameters.

        Raises:
            NoRuleError: If a layer is called in a way that its rule does not cover.
        """
        calls: dict[str, list[tuple[Tensor, GradientEdge]]] = defaultdict(list)

        def keeper(owner: str) -> Callable[..., None]:
            def keep(_: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
                if output.requires_grad:
                    calls[owner].append((inputs[0].detach(), get_gradient_edge(output)))

            return keep

        handles = [
            layer.register_forward_hook(keeper(owner), prepend=True)
            for owner, (layer, _) in self._rules.items()
        ]
        try:
            with torch.enable_grad(), self._masks.drawn(keys):
                total = _single_losses(self._loss, self._module(x), y).sum()
        finally:
            for handle in handles:
                handle.remove()
        order = [(owner, what) for owner, made in calls.items() for what, _ in made]
        edges = [edge for made in calls.values() for _, edge in made]
        returned = torch.autograd.grad(total, edges, allow_unused=True)
        del total, edges
        calls.clear()
        pairs: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for (owner, what), back in zip(order, returned, strict=True):
            if back is None:
                continue
            if len(what) != len(x) or len(back) != len(x):
                raise NoRuleError(f"{owner!r} is called without an axis of examples")
            pairs[owner].append((what, back))
        del order, returned
        return self._factors(pairs, len(x))

    def _factors(
        self, pairs: dict[str, list[tuple[Tensor, Tensor]]], num_examples: int
    ) -> dict[str, Factor]:
        own = dict(self._module.named_parameters())
        found: dict[str, Factor] = {n: Untouched(num_examples, own[n]) for n in self._names}
        with torch.no_grad():
            for owner, (layer, rule) in self._rules.items():
                if owner not in pairs:
                    continue
                for name, factor in rule(layer, pairs.pop(owner)).items():
                    full = f"{owner}.{name}" if owner else name
                    if full in found:
                        found[full] = factor
        return found


def _single_losses(loss: Loss, outputs: Tensor, y: Tensor) -> Tensor:
    """Return every example's loss, `(b,)`."""

    def single(output: Tensor, target: Tensor) -> Tensor:
        return loss(output.unsqueeze(0), target.unsqueeze(0))

    return torch.vmap(single)(outputs, y)
