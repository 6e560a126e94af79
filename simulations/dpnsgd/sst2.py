"""SST-2 for RoBERTa: sentences as tokens, the model on them, and a small stand-in for both."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedpriv.datasets.digests import fingerprint
from fedpriv.datasets.encoders import TOKENIZER, transformers_library
from fedpriv.rng import Key
from fedpriv.tasks.central import CentralTask
from fedpriv.training.bounded_sum import Stack
from fedpriv.training.evaluate import Metrics, Total
from fedpriv.training.local.module import load_params, module_params
from fedpriv.training.per_example.example_sum import ExampleGradients, Examples
from fedpriv.training.per_example.module import ModuleGradients
from fedpriv.training.streams import own_stream
from fedpriv.tree import Params
from simulations.reproduction.items import Split
from simulations.reviews.bag_of_words import Texts
from simulations.reviews.roberta import RobertaClassifier, files_of, load_roberta, tokens
from simulations.reviews.sst2 import TextSplits


@dataclass(frozen=True, slots=True, kw_only=True)
class ByLength(ExampleGradients):
    """Gradients of padded rows, each row cut to the narrowest width that holds all of it.

    Which width a row is cut to depends on that row alone, so an example's update (and what dropout
    draws for it) still depends on itself and its key only.

    Attributes:
        parts: By width, the model on all rows cut to it.
        place: Which part each row belongs to, int64 `(n,)`.
    """

    parts: tuple[ExampleGradients, ...] = field(repr=False)
    place: np.ndarray = field(repr=False)

    def stacks(self, params: Params, index: Examples, key: Key | None = None) -> Iterator[Stack]:
        """Yield all parts' stacks; of groups those of rows of full width."""
        if isinstance(index, np.ndarray):
            for part, mine in self._split(index):
                yield from part.stacks(params, mine, key)
        else:
            yield from self.parts[-1].stacks(params, index, key)

    def gradient(self, params: Params, index: np.ndarray, key: Key | None = None) -> Params:
        """Return the mean gradient over rows of full width, see `ExampleGradients`."""
        return self.parts[-1].gradient(params, index, key)

    def _split(self, index: np.ndarray) -> list[tuple[ExampleGradients, np.ndarray]]:
        places = self.place[index]
        split = [(part, index[places == number]) for number, part in enumerate(self.parts)]
        return [(part, mine) for part, mine in split if len(mine)]


def by_length(
    make: Callable[[np.ndarray], ExampleGradients],
    rows: np.ndarray,
    padding: int,
    widths: Sequence[int] = (16, 32),
) -> ByLength:
    """Return gradients of padded rows.

    Args:
        make: From rows `(n, width)` to the model on them; called for each width.
        rows: Token ids `(n, length)`, padded at the end.
        padding: The id that pads.
        widths: To cut to; those below `length` are used, and `length` itself.
    """
    length = rows.shape[1]
    edges = [*sorted(width for width in widths if width < length), length]
    filled = np.where(rows != padding, np.arange(1, length + 1), 0).max(axis=1)
    return ByLength(
        parts=tuple(make(rows[:, :width]) for width in edges),
        place=np.searchsorted(edges, filled),
    )


LENGTH = 16

_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
_PLAIN = tuple(f"plain{a}{b}" for a in "abcdefgh" for b in "abcde")
_TELLING = tuple(tuple(f"{side}{a}" for a in "abcdef") for side in ("bad", "good"))


def synthetic_sentences(
    num_train: int = 2_000, num_test: int = 1_000, *, seed: int = 0
) -> TextSplits:
    """Return sentences of 3 to 9 plain words with two words at random places that tell the label.

    Labels are drawn evenly; the indicative words alone determine them.
    """
    rng = Key.simulation(seed).fold("made-up sentences").generator()

    def some(number: int) -> Texts:
        labels = rng.integers(0, 2, number)
        texts = []
        for label in labels:
            words = list(rng.choice(_PLAIN, int(rng.integers(3, 10))))
            for _ in range(2):
                words.insert(int(rng.integers(len(words) + 1)), str(rng.choice(_TELLING[label])))
            texts.append(" ".join(words))
        return Texts(texts=tuple(texts), labels=labels)

    return TextSplits(
        name="synthetic-sentences",
        train=some(num_train),
        test=some(num_test),
        provenance={"source": "text made by a generator", "seed": seed},
        synthetic=True,
    )


def write_tiny_weights(folder: Path, *, seed: int = 0) -> None:
    """Write a folder as `load_roberta` reads it: configuration, random weights, a tokeniser.

    Two layers of width 32. The tokeniser knows the words of `synthetic_sentences` as one token each
    and everything else by its bytes.
    """
    symbols = _write_tokeniser(folder, [*_PLAIN, *_TELLING[0], *_TELLING[1]])
    options = {
        "vocab_size": symbols,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 66,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        "initializer_range": 0.2,
    }
    library = transformers_library()
    with own_stream(Key.simulation(seed).fold("tiny weights")):
        made = library.RobertaForSequenceClassification(library.RobertaConfig(**options))
    made.save_pretrained(folder)


def _write_tokeniser(folder: Path, words: Sequence[str]) -> int:
    """Write `tokenizer.json`; return the number of tokens.

    Every word is put together letter by letter from its beginning. The space before a word (`Ġ`)
    belongs to it; at the beginning of a text there is none. Merges with it come first, or a word's
    letters would be joined before it could be.
    """
    pieces = dict.fromkeys((*_SPECIAL, *_byte_symbols()))
    merges: dict[str, None] = {}
    for spelt in [*("Ġ" + word for word in words), *words]:
        for end in range(2, len(spelt) + 1):
            merges[f"{spelt[: end - 1]} {spelt[end - 1]}"] = None
            pieces[spelt[:end]] = None
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    numbers = {piece: number for number, piece in enumerate(pieces)}
    made = Tokenizer(
        models.BPE(numbers, [(a, b) for a, _, b in (m.partition(" ") for m in merges)])
    )
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    made.add_special_tokens([*_SPECIAL])
    made.save(str(folder / TOKENIZER))
    return len(pieces)


def _byte_symbols() -> list[str]:
    """Return the printable symbol of every byte, as byte-level tokenisers write them.

    Bytes that Latin-1 prints stand for themselves, the others are numbered from 256 on.
    """
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    symbols = {byte: chr(byte) for byte in printed}
    symbols |= {byte: chr(256 + number) for number, byte in enumerate(others)}
    return [symbols[byte] for byte in np.arange(256).tolist()]


BATCH, EPOCHS, VALIDATION = 1000, 10, 0.1
#: Noise multipliers by ε, as RDP counts 680 Poisson batches of 1000 from 67,349.
SIGMA = {8.0: 0.6558, 4.0: 0.8429, 2.0: 1.1457}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Settings that all runs of a command share.

    Attributes:
        weights: Folder of the pre-trained model.
        data: Sentences.
        epsilon: 8, 4 or 2, as RDP counts it; when reduced any, as PLD does.
        length: Tokens of a sentence, with both marks; what is longer is cut off.
        device: "cpu" or such as "cuda:0".
        reduced: Smaller batches and fewer epochs.
    """

    weights: Path
    data: TextSplits
    epsilon: float = 8.0
    length: int = 64
    device: str = "cpu"
    reduced: bool = False

    def __post_init__(self) -> None:
        if not self.reduced and self.epsilon not in SIGMA:
            raise ValueError(f"epsilon {self.epsilon!r} is not known; use 8, 4 or 2")

    @property
    def batch(self) -> int:
        """Expected examples a step."""
        return 200 if self.reduced else BATCH

    def steps(self, split: Split) -> int:
        """Return the steps of a run: whole ones an epoch, one for a last part."""
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
        return module_params(load_roberta(setup.weights, key=key))

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
    return load_roberta(setup.weights, key=Key.simulation(0))


@cache
def digest(folder: Path) -> str:
    """Return the SHA-256 of a folder's weights."""
    return files_of(folder).weights_sha256


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
