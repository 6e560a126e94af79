"""Per-example gradients of a whole module by one forward and one backward pass over the batch.

The batch goes through the module once. Each layer's input is kept, and the gradients by the
layers' *outputs* are asked for, so that autograd never multiplies out a gradient by a parameter.
Every example's loss is computed alone (`torch.vmap`), whatever the loss does with a batch.

A layer's rule holds for exactly one class, never for its subclasses: those may compute something
else. Dropout draws each example's masks from a key of its own (`ExampleMasks`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional
from torch.nn.grad import conv2d_weight

from fedpriv.models.images import SoftmaxRegression
from fedpriv.rng import Key
from fedpriv.training.per_example.ghost_norms import (
    Dense,
    Factor,
    Outer,
    Rows,
    Untouched,
    summed_outer,
)


class ExampleMasks:
    """Takes the place of a module's `nn.Dropout` layers while it is asked to.

    Every example's generator is read call by call, in the order of the forward pass, so that an
    example has the same masks in a batch and alone.
    """

    def __init__(self, module: nn.Module) -> None:
        self._layers = [m for m in module.modules() if type(m) is nn.Dropout and m.p > 0.0]

    def __bool__(self) -> bool:
        """Whether there is anything to draw."""
        return bool(self._layers)

    @contextmanager
    def drawn(self, keys: Sequence[Key] | None) -> Iterator[list[Tensor]]:
        """Let the layers draw masks for a batch; give the list of those drawn.

        Args:
            keys: One for each example; None to drop nothing.
        """
        generators = [key.fold("dropout").generator() for key in keys or ()]
        masks: list[Tensor] = []

        def draw(layer: nn.Module, _: object, output: Tensor) -> Tensor:
            rate, shape = float(layer.p), output.shape[1:]  # type: ignore[arg-type]
            if len(output) != len(generators):
                raise ValueError(
                    f"dropout sees {len(output)} rows for {len(generators)} examples; keep the "
                    "examples on the first axis"
                )
            rows = [rng.random(shape, np.float32) >= rate for rng in generators]
            kept = torch.from_numpy(np.stack(rows)).to(output.device, output.dtype)
            masks.append(kept / (1.0 - rate) if rate < 1.0 else kept.zero_())
            return output * masks[-1]

        with self._hooked(None if keys is None else draw):
            yield masks

    @contextmanager
    def given(self, masks: Sequence[Tensor]) -> Iterator[None]:
        """Let the layers use masks `(1, ...)`, call by call."""
        left = list(masks)

        def use(layer: nn.Module, _: object, output: Tensor) -> Tensor:
            return output * left.pop(0)

        with self._hooked(use if left else None):
            yield

    @contextmanager
    def _hooked(self, hook: object) -> Iterator[None]:
        """Switch the layers off, and let the hook change what they return."""
        before = [layer.training for layer in self._layers]
        handles = []
        try:
            for layer in self._layers:
                layer.training = False
                if hook is not None:
                    handles.append(layer.register_forward_hook(hook))  # type: ignore[arg-type]
            yield
        finally:
            for handle in handles:
                handle.remove()
            for layer, mode in zip(self._layers, before, strict=True):
                layer.training = mode


#: For every call of a layer its input and the gradient by its output, examples first.
Calls = Sequence[tuple[Tensor, Tensor]]
#: From a layer and its calls to the gradients of its own parameters, by name.
Rule = Callable[[Any, Calls], Mapping[str, Factor]]


class NoRuleError(ValueError):
    """A layer is used in a way that no rule covers."""


def rule_of(layer: nn.Module) -> Rule | None:
    """Return the layer's rule; None for a class, or an option of one, that has none."""
    if type(layer) is nn.Conv2d:
        plain = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        return _conv2d if plain else None
    if type(layer) is nn.Embedding:
        plain = layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse
        return _embedding if plain else None
    return _RULES.get(type(layer))


def _once(calls: Calls) -> tuple[Tensor, Tensor]:
    if len(calls) != 1:
        raise NoRuleError(f"a layer is called {len(calls)} times")
    return calls[0]


def _steps(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors `(b, ..., width)` as one `(b, t, width)`."""
    if any(tensor.ndim < 2 for tensor in tensors):
        raise NoRuleError("a layer is called without an axis of examples")
    flat = [t.reshape(len(t), -1, t.shape[-1]) for t in tensors]
    return flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)


def _linear(layer: nn.Linear, calls: Calls) -> dict[str, Factor]:
    right, left = _steps([x for x, _ in calls]), _steps([back for _, back in calls])
    weight = Outer(left[:, 0], right[:, 0]) if left.shape[1] == 1 else summed_outer(left, right)
    return {"weight": weight, "bias": Dense(left.sum(1) if left.shape[1] > 1 else left[:, 0])}


def _softmax_regression(layer: SoftmaxRegression, calls: Calls) -> dict[str, Factor]:
    x, back = _once(calls)
    if x.ndim != 2:
        raise NoRuleError("softmax regression is called on more than one vector an example")
    return {"kernel": Outer(x, back), "bias": Dense(back)}


def _conv2d(layer: nn.Conv2d, calls: Calls) -> dict[str, Factor]:
    x, back = calls[0]
    weight, bias = _conv2d_weight(layer, x, back), back.sum((2, 3))
    for x, back in calls[1:]:
        weight += _conv2d_weight(layer, x, back)
        bias += back.sum((2, 3))
    return {"weight": Dense(weight), "bias": Dense(bias)}


def _conv2d_weight(layer: nn.Conv2d, x: Tensor, back: Tensor) -> Tensor:
    """Return the weight gradients `(b, *shape)`: one convolution with examples as groups.

    Two to four times faster than products with unfolded patches (Rochette et al., "Efficient
    Per-Example Gradient Computations in Convolutional Neural Networks", 2019).
    """
    if x.ndim != 4:
        raise NoRuleError("a convolution is called without an axis of examples")
    number, (out, *rest) = len(x), layer.weight.shape
    padding = tuple(map(int, layer.padding))
    options = (layer.stride, padding, layer.dilation, layer.groups * number)
    gradient = conv2d_weight(
        x.reshape(1, -1, *x.shape[2:]),
        [number * out, *rest],
        back.reshape(1, -1, *back.shape[2:]),
        *options,  # type: ignore[arg-type]
    )
    return gradient.view(number, out, *rest)


def _embedding(layer: nn.Embedding, calls: Calls) -> dict[str, Factor]:
    if any(ids.ndim < 1 for ids, _ in calls):
        raise NoRuleError("an embedding is called without an axis of examples")
    ids = torch.cat([ids.reshape(len(ids), -1) for ids, _ in calls], dim=1)
    values = _steps([back.reshape(len(back), -1, back.shape[-1]) for _, back in calls])
    if layer.padding_idx is not None:
        values = values.masked_fill((ids == layer.padding_idx)[:, :, None], 0)
    return {"weight": Rows(ids, values, layer.num_embeddings)}


def _group_norm(layer: nn.GroupNorm, calls: Calls) -> dict[str, Factor]:
    x, back = _once(calls)
    plain = functional.group_norm(x, layer.num_groups, None, None, layer.eps)
    plain = plain.mul_(back).flatten(2)
    return {"weight": Dense(plain.sum(2)), "bias": Dense(back.flatten(2).sum(2))}


def _layer_norm(layer: nn.LayerNorm, calls: Calls) -> dict[str, Factor]:
    x, back = _once(calls)
    shape = layer.normalized_shape
    if x.ndim <= len(shape):
        raise NoRuleError("a layer norm is called without an axis of examples")
    plain = functional.layer_norm(x, shape, None, None, layer.eps).mul_(back)
    return {
        "weight": Dense(plain.reshape(len(x), -1, *shape).sum(1)),
        "bias": Dense(back.reshape(len(x), -1, *shape).sum(1)),
    }


_RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
    SoftmaxRegression: _softmax_regression,
}


Loss = Callable[[Tensor, Tensor], Tensor]


class GhostPass:
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
