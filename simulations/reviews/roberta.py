"""RoBERTa as a classifier of sentences, its embeddings frozen; needs the extra `pretrained`.

Reference: Liu et al., "RoBERTa: A Robustly Optimized BERT Pretraining Approach" (2019).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedpriv.datasets.encoders import CONFIG, Encoder, EncoderFiles, check_files, load_transformer
from fedpriv.models.pretrained import attention_mask, replace_other_tables
from fedpriv.rng import Key

_HEAD = "classifier."


class RobertaClassifier(nn.Module):
    """A RoBERTa encoder and its classification head; tensors are named as in published weights.

    RoBERTa-base with two classes has 124,647,170 parameters; 39,000,576 of them are the
    embeddings (words, positions, kinds, and the layer norm behind them), which are frozen, so that
    85,646,594 are trained. Nothing is dropped.

    Args:
        network: A `transformers.RobertaForSequenceClassification`.
    """

    def __init__(self, network: Any) -> None:
        super().__init__()
        replace_other_tables(network)
        network.roberta.embeddings.requires_grad_(False)
        self.config = network.config
        self.roberta, self.classifier = network.roberta, network.classifier

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits `(b, classes)` of token ids `(b, length)`; nothing looks at padding."""
        mask = attention_mask(tokens != self.config.pad_token_id)
        return self.classifier(self.roberta(tokens, attention_mask=mask).last_hidden_state)


def files_of(folder: str | os.PathLike[str]) -> EncoderFiles:
    """Return the files of a folder, checked and hashed; raise `ValueError` if one is missing."""
    return check_files(Path(folder), "roberta")


def load_roberta(folder: str | os.PathLike[str], *, key: Key | None = None) -> RobertaClassifier:
    """Return the classifier, with two classes, of a folder as `save_pretrained` makes it.

    Args:
        folder: Of any RoBERTa.
        key: Draws a new head (normal weights, zero biases), whatever the file has; None for the
            file's own.

    Raises:
        ValueError: If the extra is missing, or the folder has no such model.
    """
    files = files_of(folder)
    network = load_transformer(
        files, "AutoModelForSequenceClassification", may_lack=(_HEAD,) if key else (), num_labels=2
    )
    if network.config.model_type != "roberta":
        raise ValueError(f"{files.folder / CONFIG} is of a {network.config.model_type!r}")
    module = RobertaClassifier(network)
    if key is not None:
        for name, parameter in module.classifier.named_parameters():
            drawn = key.fold(name).generator().standard_normal(tuple(parameter.shape))
            scale = module.config.initializer_range if parameter.ndim > 1 else 0.0
            with torch.no_grad():
                parameter.copy_(torch.from_numpy(scale * drawn))
    return module


def tokens(folder: str | os.PathLike[str], sentences: Sequence[str], *, length: int) -> np.ndarray:
    """Return token ids int64 `(n, length)` by the tokeniser of a folder, cut off or padded.

    Every row begins with the sentence mark `<s>` and ends, before the padding, with `</s>`, cut off
    or not.

    Args:
        folder: As of `load_roberta`.
        sentences: n texts.
        length: At least 3, and at most what the model has positions for.

    Raises:
        ValueError: If the extra or a file is missing, or the length is not usable.
    """
    encoder = Encoder(files_of(folder))
    if not 3 <= length <= encoder.max_tokens:
        raise ValueError(
            f"length {length!r} must be at least 3, for a word, and at most the "
            f"{encoder.max_tokens} positions of the model"
        )
    rows = np.full((len(sentences), length), encoder.padding, np.int64)
    for row, ids in zip(rows, encoder.tokens(sentences, length), strict=True):
        row[: len(ids)] = ids
    return rows
