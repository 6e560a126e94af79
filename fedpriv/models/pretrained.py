"""Modules on a pretrained transformer: a classifier of texts, and a model of the next token.

Token ids are padded behind a text by `PADDING`, which nothing looks at: attention is masked, and no
pooling counts it. The body is any of transformers' whose attention takes a mask
`(b, 1, from, to)`; what is frozen of it and what is adapted was decided before.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

Pooling = Literal["mean", "cls", "max"]

#: Padding behind a text's token ids.
PADDING = -1
#: Tokens that lengths are rounded up to a multiple of, so that users have few shapes.
STEP = 8
_HEAD_STDDEV = 0.02
# Texts that go through the body together where nothing is trained.
_AT_ONCE = 64


def pool_states(states: Tensor, real: Tensor, pooling: Pooling) -> Tensor:
    """Return one row for each text, `(b, width)`, of its tokens' states `(b, length, width)`.

    Args:
        states: Of the last layer.
        real: `(b, length)`, 0 or False at padding.
        pooling: Mean or maximum over tokens, or the first token's.
    """
    weight = real.unsqueeze(2).to(states.dtype)
    if pooling == "cls":
        return states[:, 0]
    if pooling == "max":
        return states.masked_fill(weight == 0, -torch.inf).amax(dim=1)
    return (states * weight).sum(dim=1) / weight.sum(dim=1)


class _OnTransformer(nn.Module):
    """Base of modules on a body of transformers."""

    def __init__(self, body: Any, *, padding: int = 0) -> None:
        super().__init__()
        replace_other_tables(body)
        self.body, self.padding = body, padding

    def without_padding(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return one user's token ids, and targets of each token, cut to their own length."""
        length = own_length(x)
        return x[:, :length], y[:, :length] if y.ndim > 1 else y


class TextClassifier(_OnTransformer):
    """A softmax layer on the rows of texts, scaled to one norm.

    Columns that are padding in a whole batch are left out, and what is measured goes in small
    batches: examples sorted by length are measured several times faster.

    Args:
        body: An encoder of transformers.
        num_classes: Of the head.
        pooling: As of `pool_states`.
        row_norm: L2 norm of a text's row: with a larger one the same step moves the head's
            logits more, by its square, and those that adapters move as before.
        padding: The body's id of padding.
    """

    def __init__(
        self,
        body: Any,
        num_classes: int,
        *,
        pooling: Pooling = "mean",
        row_norm: float = 1.0,
        padding: int = 0,
    ) -> None:
        super().__init__(body, padding=padding)
        self.pooling: Pooling = pooling
        self.row_norm = row_norm
        self.head = nn.Linear(body.config.hidden_size, num_classes)
        nn.init.normal_(self.head.weight, std=_HEAD_STDDEV)
        nn.init.zeros_(self.head.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits `(b, num_classes)` of token ids `(b, length)`."""
        return self.head(self.row_norm * functional.normalize(self._rows(tokens), dim=1))

    def _rows(self, tokens: Tensor) -> Tensor:
        """Return a row for each text, `(b, width)`, of its token ids `(b, length)`."""
        if len(tokens) > _AT_ONCE and not torch.is_grad_enabled():
            return torch.cat([self._rows(part) for part in tokens.split(_AT_ONCE)])
        tokens = _trimmed(tokens)
        real = tokens >= 0
        states = self.body(
            input_ids=tokens.masked_fill(~real, self.padding), attention_mask=attention_mask(real)
        ).last_hidden_state
        return pool_states(states, real, self.pooling)


class CausalModel(_OnTransformer):
    """Scores of the token that follows each, by a causal model of transformers.

    Args:
        body: With a head of scores, such as GPT-2's.
        padding: The body's id of padding.
    """

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores `(b, length, vocabulary)` of token ids `(b, length)`."""
        real = tokens >= 0
        mask = attention_mask(real)
        hidden = torch.ones(mask.shape[-2:], dtype=torch.bool, device=tokens.device).triu(1)
        return self.body(
            input_ids=tokens.masked_fill(~real, self.padding),
            attention_mask=mask.masked_fill(hidden, torch.finfo(mask.dtype).min),
            use_cache=False,
        ).logits


def own_length(tokens: np.ndarray) -> int:
    """Return the length of the longest of token ids `(n, length)`, rounded up to a `STEP`."""
    filled = np.flatnonzero((tokens >= 0).any(axis=0))
    return padded_length(int(filled[-1]) + 1 if len(filled) else 1)


def padded_length(longest: int) -> int:
    """Return the length of rows whose longest has so many tokens.

    >>> padded_length(1), padded_length(8), padded_length(9)
    (8, 8, 16)
    """
    return -(-max(longest, 1) // STEP) * STEP


def _trimmed(tokens: Tensor) -> Tensor:
    """Return ids without the last columns, of nothing but padding; under `torch.vmap` all."""
    try:
        longest = int((tokens >= 0).any(dim=0).sum())
    except RuntimeError:  # values cannot be looked at
        return tokens
    return tokens[:, : max(longest, 1)]


def attention_mask(real: Tensor) -> Tensor:
    """Return what is added to attention's scores, `(b, 1, from, to)`.

    Of this form transformers takes it as it is; of a plain one it looks at the values, which
    `torch.vmap` cannot.
    """
    mask = torch.zeros(real.shape, device=real.device)
    mask = mask.masked_fill(~real, torch.finfo(mask.dtype).min)
    return mask[:, None, None, :].expand(-1, 1, real.shape[1], -1)


class _Table(nn.Module):
    """A look-up of positions or kinds of token, by numbers that no example brings.

    Not an `nn.Embedding`: layers of that class say which ids a module may be tried with.
    """

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, numbers: Tensor) -> Tensor:
        return functional.embedding(numbers, self.weight)


def replace_other_tables(body: Any) -> None:
    """Replace every `nn.Embedding` of a transformer but that of words, in place."""
    words = body.get_input_embeddings()
    for layer in list(body.modules()):
        for name, child in list(layer.named_children()):
            if type(child) is nn.Embedding and child is not words:
                setattr(layer, name, _Table(cast("nn.Parameter", child.weight)))
