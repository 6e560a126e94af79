"""Made-up sentences and a tiny untrained RoBERTa, for tests and runs without SST-2 or weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedpriv.datasets.bag_of_words import Texts
from fedpriv.datasets.sst2 import TextSplits
from fedpriv.models.roberta import random_roberta, save_roberta
from fedpriv.rng import Key

LENGTH = 16

_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
_PLAIN = tuple(f"plain{a}{b}" for a in "abcdefgh" for b in "abcde")
_TELLING = tuple(tuple(f"{side}{a}" for a in "abcdef") for side in ("bad", "good"))


def synthetic_sentences(
    num_train: int = 2_000, num_test: int = 1_000, *, seed: int = 0
) -> TextSplits:
    """Return sentences of 3 to 9 plain words with two words at random places that tell the label.

    Labels are drawn evenly; whoever knows the telling words is always right.
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


def write_tiny_weights(folder: Path, *, seed: int = 0, dropout: float = 0.0) -> None:
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
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }
    save_roberta(random_roberta(options, Key.simulation(seed).fold("tiny weights")), folder)


def _write_tokeniser(folder: Path, words: Sequence[str]) -> int:
    """Write `vocab.json` and `merges.txt`; return the number of tokens.

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
    numbers = {piece: number for number, piece in enumerate(pieces)}
    (folder / "vocab.json").write_text(json.dumps(numbers, ensure_ascii=False), "utf-8")
    text = "#version: 0.2\n" + "".join(f"{merge}\n" for merge in merges)
    (folder / "merges.txt").write_text(text, "utf-8")
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
