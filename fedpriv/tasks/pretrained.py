"""Modules of a pretrained transformer's files, and users' texts as their inputs.

The factories here are what `ModuleTask` takes as its module: called again and again and in every
process, they share one copy of the frozen weights in each. Trained, sent and kept are adapters and
the head alone.

    model = PretrainedClassifier(files=find_encoder("all-minilm-..."), num_classes=5, rank=4)
    task = ModuleTask(
        name="letters", module=model, published=model.published,
        loss=nn.functional.cross_entropy,
        users={user: (model.inputs(texts), labels) for user, (texts, labels) in letters.items()},
    )

Guarantees:
    * A user trains on arrays of its own texts alone, cut to a length of their own, to whatever
      length they were padded together with others'.
    * Weights come from safetensors on disk; nothing is downloaded and no code of a folder is run.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from torch import nn

from fedpriv.datasets.encoders import AutoClass, Encoder, EncoderFiles, load_transformer
from fedpriv.models.lora import add_adapters
from fedpriv.models.pretrained import PADDING, CausalModel, TextClassifier, padded_length
from fedpriv.training.local.module import ArrayExamples
from fedpriv.training.local.module_measures import IGNORED


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pretrained:
    """Settings that both models have.

    Attributes:
        files: Of `fedpriv.datasets.encoders.find_encoder`.
        rank: Of the adapters; 0 for none.
        matrices: Which layers are adapted, as of `fedpriv.models.lora.add_adapters`.
        freeze_a: Whether only the second matrix of an adapter is trained (FFA-LoRA).
        scale: Factor of an adapter's product.
        max_tokens: Tokens of a text that are read; None for as many as the files say.
    """

    files: EncoderFiles
    rank: int = 4
    matrices: tuple[str, ...] | None = None
    freeze_a: bool = False
    scale: float = 2.0
    max_tokens: int | None = None

    @property
    def published(self) -> Mapping[str, str]:
        """SHA-256 of the files, for `ModuleTask(published=...)`."""
        return {self.files.name: self.files.sha256}

    def _adapted(self, kind: AutoClass) -> Any:
        """Return a body with adapters, over the one copy of the weights in this process."""
        loaded = _loaded(self.files, kind)
        shared = {id(p): nn.Parameter(p.data, requires_grad=False) for p in loaded.parameters()}
        body = copy.deepcopy(loaded, shared)
        if self.rank == 0:
            return body
        return add_adapters(
            body, self.rank, self.matrices, freeze_a=self.freeze_a, scale=self.scale
        )

    def _tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Return each text's ids, one at least."""
        encoder = _encoder(self.files)
        return [ids or [encoder.padding] for ids in encoder.tokens(texts, self.max_tokens)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainedClassifier(_Pretrained):
    """A classifier of texts: `fedpriv.models.pretrained.TextClassifier` of an encoder's files.

    Attributes:
        num_classes: Of the head.
        row_norm: As of `TextClassifier`.
    """

    num_classes: int
    row_norm: float = 1.0

    def __call__(self) -> TextClassifier:
        """Return the module; adapters and head are drawn by torch.

        Raises:
            ValueError: If the extra `pretrained` is missing, the files are of no encoder or of one
                with Dense modules, or a matrix or the rank does not fit.
        """
        encoder = _encoder(self.files)
        dense = set(encoder.modules) - {"Transformer", "Pooling", "Normalize"}
        if dense:
            raise ValueError(
                f"encoder {self.files.id} has {', '.join(sorted(dense))}, which classifiers with "
                "adapters have not; give an encoder without Dense modules"
            )
        return TextClassifier(
            self._adapted("AutoModel"),
            self.num_classes,
            pooling=encoder.pooling,
            row_norm=self.row_norm,
            padding=encoder.padding,
        )

    def inputs(self, texts: Sequence[str]) -> np.ndarray:
        """Return token ids of one user's texts.

        Returns:
            int64 `(n, length)`; the length is that of the longest, rounded up, and what is behind
            a text is `PADDING`.
        """
        return _padded(self._tokens(texts))


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainedCausal(_Pretrained):
    """A model of the next token: `fedpriv.models.pretrained.CausalModel` of its files.

    Its outputs are scores `(n, length, vocabulary)`; with `fedpriv.models.text.next_word_loss` and
    no `measures`, a `ModuleTask` measures perplexity and token accuracy.
    """

    def __call__(self) -> CausalModel:
        """Return the module; adapters are drawn by torch.

        Raises:
            ValueError: As of `PretrainedClassifier`; or there is no adapter to train.
        """
        if not self.rank:
            raise ValueError("rank 0: of a causal model only adapters are trained; give 1 or more")
        padding = _encoder(self.files).padding
        return CausalModel(self._adapted("AutoModelForCausalLM"), padding=padding)

    def examples(self, texts: Sequence[str]) -> ArrayExamples:
        """Return one user's texts, each as token ids and those that follow them.

        A text is cut off after `max_tokens`. Where the files name a token that texts begin and end
        with (GPT-2's <|endoftext|>), it goes before and behind; else the first token is not
        predicted, and a text of a single token tells nothing.

        Returns:
            x int64 `(n, length)`, behind a text `PADDING`; y likewise, there `IGNORED`.
        """
        encoder = _encoder(self.files)
        marks = (encoder.config.bos_token_id, encoder.config.eos_token_id)
        begin, end = ([] if token is None else [token] for token in marks)
        most = min(self.max_tokens or encoder.max_tokens, encoder.max_tokens)
        rows = [[*begin, *ids, *end][: most + 1] for ids in self._tokens(texts)]
        return ArrayExamples(
            _padded([row[:-1] or row for row in rows]),
            _padded([row[1:] or [IGNORED] for row in rows], IGNORED),
        )


@lru_cache(maxsize=2)
def _encoder(files: EncoderFiles) -> Encoder:
    return Encoder(files)


@lru_cache(maxsize=2)
def _loaded(files: EncoderFiles, kind: AutoClass) -> Any:
    return load_transformer(files, kind).eval().requires_grad_(False)


def _padded(rows: Sequence[Sequence[int]], padding: int = PADDING) -> np.ndarray:
    length = padded_length(max(map(len, rows), default=1))
    out = np.full((len(rows), length), padding, np.int64)
    for row, ids in zip(out, rows, strict=True):
        row[: len(ids)] = ids
    return out
