"""SST-2 for RoBERTa: sentences as tokens, the model on them, and a small stand-in for both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedpriv.datasets.digests import fingerprint
from fedpriv.datasets.sst2 import TextSplits
from fedpriv.hashes import file_sha256
from fedpriv.models.roberta import RobertaClassifier, load_roberta, tokens, weights_path
from fedpriv.reproduction import Split
from fedpriv.rng import Key
from fedpriv.tasks.central import CentralTask
from fedpriv.training.evaluate import Metrics, Total
from fedpriv.training.local.module import load_params, module_params
from fedpriv.training.per_example.module import ModuleGradients
from fedpriv.tree import Params
from simulations.dpnsgd.by_length import by_length
from simulations.dpnsgd.sst2_stand_in import LENGTH, synthetic_sentences, write_tiny_weights

BATCH, EPOCHS, VALIDATION = 1000, 10, 0.1
#: Noise multipliers by ε, as RDP counts 680 Poisson batches of 1000 from 67,349.
SIGMA = {8.0: 0.6558, 4.0: 0.8429, 2.0: 1.1457}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What all runs of a command have in common.

    Attributes:
        weights: Folder of the pre-trained model.
        data: Sentences.
        epsilon: 8, 4 or 2, as RDP counts it; when reduced any, as PLD does.
        length: Tokens of a sentence, with both marks; what is longer is cut off.
        dropout: Rate everywhere.
        device: "cpu" or such as "cuda:0".
        reduced: Smaller batches and fewer epochs.
    """

    weights: Path
    data: TextSplits
    epsilon: float = 8.0
    length: int = 64
    dropout: float = 0.0
    device: str = "cpu"
    reduced: bool = False

    def __post_init__(self) -> None:
        if not self.reduced and self.epsilon not in SIGMA:
            raise ValueError(f"epsilon {self.epsilon!r} is not one of the paper's: 8, 4 or 2")

    @property
    def batch(self) -> int:
        """Expected examples a step."""
        return 200 if self.reduced else BATCH

    def steps(self, split: Split) -> int:
        """Return the steps of a run: whole ones an epoch, as the paper counts."""
        epochs = 5 if self.reduced else EPOCHS
        return epochs * math.ceil(len(rows(self, split)) / self.batch)


def reduced_setup(folder: Path, **options: Any) -> Setup:
    """Return synthetic sentences and a tiny random model, written into a folder that exists."""
    write_tiny_weights(folder)
    data = synthetic_sentences()
    return Setup(weights=folder, data=data, length=LENGTH, reduced=True, **options)


def rows(setup: Setup, split: Split, *, seen: bool = False) -> np.ndarray:
    """Return positions to train on, or those in the training set that validation is seen on."""
    number = len(setup.data.train)
    if split == "test":
        return np.arange(0 if seen else number)
    order = Key.simulation(0).fold("validation").generator().permutation(number)
    cut = int(VALIDATION * number)
    return np.sort(order[:cut] if seen else order[cut:])


@cache
def task(setup: Setup, split: Split) -> CentralTask:
    """Return the task: on the development set, or on held-out training examples."""
    data, chosen = setup.data, rows(setup, split)
    x, y = _encoded(setup, "train")[chosen], data.train.labels[chosen]
    if split == "validation":
        held = rows(setup, split, seen=True)
        x_seen, y_seen = _encoded(setup, "train")[held], data.train.labels[held]
    else:
        x_seen, y_seen = _encoded(setup, "test"), data.test.labels
    module = _module(setup)

    def gradients(cut: np.ndarray) -> ModuleGradients:
        return ModuleGradients(module, nn.functional.cross_entropy, cut, y, device=setup.device)

    def init(key: Key) -> Params:
        return module_params(load_roberta(setup.weights, key=key, dropout=setup.dropout))

    return CentralTask(
        name=data.name,
        train=by_length(gradients, x, module.config.pad_token_id),
        num_train=len(y),
        init=init,
        measure=partial(_measure, module, x_seen, y_seen),
        provenance={
            **data.provenance,
            "weights": {"sha256": digest(setup.weights), "public": "by assumption"},
            "tokens": setup.length,
        },
        synthetic=data.synthetic,
        data_sha256=lambda: {"private": fingerprint(x, y)},
    )


@cache
def _encoded(setup: Setup, part: str) -> np.ndarray:
    return tokens(setup.weights, getattr(setup.data, part).texts, length=setup.length)


@cache
def _module(setup: Setup) -> RobertaClassifier:
    module = load_roberta(setup.weights, key=Key.simulation(0), dropout=setup.dropout)
    if setup.length > module.config.max_position_embeddings - 2:
        raise ValueError(
            f"length {setup.length} is more than the {module.config.max_position_embeddings - 2} "
            "positions of the model"
        )
    return module


@cache
def digest(folder: Path) -> str:
    """Return the SHA-256 of a folder's weights."""
    return file_sha256(weights_path(folder))


def _measure(module: RobertaClassifier, x: np.ndarray, y: np.ndarray, params: Params) -> Metrics:
    load_params(module, params).eval()
    device, padding = next(module.parameters()).device, module.config.pad_token_id
    order = np.argsort((x != padding).sum(axis=1), kind="stable")
    right, total = 0, 0.0
    with torch.no_grad():
        for part in np.array_split(order, -(-len(order) // 64)):
            width = int((x[part] != padding).any(axis=0).sum())
            logits = module(torch.from_numpy(x[part, :width]).to(device))
            targets = torch.from_numpy(y[part]).to(device)
            total += float(nn.functional.cross_entropy(logits, targets, reduction="sum"))
            right += int((logits.argmax(dim=1) == targets).sum())
    number = len(y)
    totals = {"accuracy": Total(sum=right, count=number), "loss": Total(sum=total, count=number)}
    return Metrics(totals=totals, num_examples=number)
