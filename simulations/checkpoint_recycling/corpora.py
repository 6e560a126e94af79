"""Corpora of the studies by user, small enough for hundreds of runs on two cores."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fedpriv.datasets.importers.dump import import_stackexchange
from fedpriv.datasets.importers.locate import (
    cached,
    cached_synthetic,
    find_candidates,
    raw_kind,
    resolve_corpus,
    stackexchange_name,
)
from fedpriv.datasets.importers.synthetic import Shape
from fedpriv.datasets.stackexchange.corpus import Corpus

MAX_WORDS, MAX_TAGS = 200, 20
_SYNTHETIC = Shape(num_users=120, num_sentences=6_000, public_users=40, num_words=MAX_WORDS,
                   num_tags=MAX_TAGS, num_topics=5)  # fmt: skip


def small_corpus(argument: str | None, *, tiny: bool = False) -> Corpus:
    """Return a corpus of at most 200 words and 20 tags: 4,020 parameters.

    Args:
        argument: A dump, a known name, or a prepared corpus, which is opened as it is; None for
            the environment's `FEDPRIV_DATA`, or *Answers on Startups*.
        tiny: Whether None is a small synthetic corpus.

    Raises:
        ValueError: If there is none, or it is damaged.
    """
    if argument is None and tiny:
        return synthetic_corpus()
    wish = argument if argument is not None else os.environ.get("FEDPRIV_DATA") or "onstartups"
    path = Path(wish).expanduser()
    if not path.exists():
        raw = [found.path for found in find_candidates(wish) if not found.prepared]
        if not raw:
            raise ValueError(
                f"no dump of {wish!r} was found; give a Posts.xml or a prepared corpus by "
                "--corpus, or get one with `fedpriv data fetch onstartups`"
            )
        path = raw[0]
    if path.is_dir() or raw_kind(path) != "stackexchange":
        return resolve_corpus(path, allow_synthetic=False)
    name, about = stackexchange_name(path)
    given: dict[str, Any] = {**about, "name": name, "max_words": MAX_WORDS, "max_tags": MAX_TAGS}
    return cached(
        f"{name}-small",  # no search for a corpus of the name finds it
        lambda target, tell: import_stackexchange(path, target, progress=tell, **given),
        source=path,
        options={"max_words": MAX_WORDS, "max_tags": MAX_TAGS},
    )


def synthetic_corpus() -> Corpus:
    """Return the small synthetic corpus of reduced sizes."""
    return cached_synthetic(shape=_SYNTHETIC)
