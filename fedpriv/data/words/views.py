"""A roster's views as sequences: found next to its tag views, or made when one is asked for.

A view takes its users, vocabulary and split from the tag view of the same roster and split, and
lies in a folder of its own next to that one. It holds every sentence, with a label or without.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.data.corpus import manifest as manifests
from fedpriv.data.corpus.corpus import Corpus
from fedpriv.data.corpus.division import TEST, TRAIN, VALIDATION, divided
from fedpriv.data.corpus.splits import BY_THREAD, Split
from fedpriv.data.corpus.views import READ_ONLY
from fedpriv.data.files.arrays import ArrayWriter, offsets
from fedpriv.data.files.cache import cache_dir
from fedpriv.data.files.places import keep_private
from fedpriv.data.sentences.sequences import Sequences
from fedpriv.data.sentences.store import SentenceStore
from fedpriv.data.words.sentences import UNKNOWN
from fedpriv.data.words.view import WordView, open_word_view

_SUFFIX = "-words"
_SHARED = ("users.json", "vocabulary.json", "word_counts.npy")
_KEPT = (
    "split", "roster_rule", "roster_how", "roster_looks_at_data", "words", "word_counts",
    "word_counts_source",
)  # fmt: skip


def word_view(
    corpus: Corpus, roster: str | None = None, users: int | None = None, split: Split = BY_THREAD
) -> WordView:
    """Open the sequences of one roster, split one way; they are made when first asked for.

    Args:
        corpus: a prepared corpus that keeps the order of words.
        roster: a name from its rosters; None for its default.
        users: keep only the first so many users of the roster; vocabulary and public users stay.
        split: what is for training, validation and testing.

    Raises:
        ValueError: as `Corpus.view`; a part of a corpus, or one that was prepared before the order
            of words was kept; a split that bounds what an owner has.
    """
    if corpus.is_part:
        raise ValueError(
            f"{corpus.directory} is a part of a corpus, and parts do not keep the order of words; "
            "give the whole corpus"
        )
    if split.owners != "account":
        raise ValueError(
            f"owners {split.owners!r}: a sentence has one owner, who wrote it; leave it out"
        )
    tags = corpus.view(roster, users, split)
    folder = _found(corpus, corpus.view_folder(tags.roster_name, split), tags.roster_name, split)
    manifests.read_view(folder)
    about = {key: corpus.manifest[key] for key in ("name", "synthetic", "licence", "credit")}
    said: Mapping[str, Any] = {key: tags.provenance[key] for key in _KEPT}
    return open_word_view(
        folder,
        roster=tags.roster_name,
        split=split,
        about=about,
        provenance={**said, "example": "a sentence, in its writer's words alone: no title, no tag"},
        users=users,
    )


def _found(corpus: Corpus, of_tags: Path, roster: str, split: Split) -> Path:
    """Return a view's folder, making it if need be; in the cache where the corpus is read-only."""
    name = f"{split.name}{_SUFFIX}"
    elsewhere = cache_dir() / "views" / corpus.manifest["manifest_sha256"][:16] / roster
    places = (of_tags.parent / name, elsewhere / name)
    for place in places:
        if (place / manifests.VIEW_FILE).is_file():
            return place
    try:
        _make(corpus, of_tags, places[0], split)
        return places[0]
    except OSError as error:
        if error.errno not in READ_ONLY:
            raise
    elsewhere.mkdir(mode=0o700, parents=True, exist_ok=True)
    _make(corpus, of_tags, places[1], split)
    return places[1]


def _make(corpus: Corpus, of_tags: Path, folder: Path, split: Split) -> None:
    """Make a view's folder; of two processes that do, the second finds the first's."""
    unready = Path(tempfile.mkdtemp(prefix=f".{folder.name}.partial-", dir=folder.parent))
    try:
        for name in _SHARED:
            shutil.copyfile(of_tags / name, unready / name)
        facts = _write(corpus, unready, split)
        manifests.write_view(unready, facts)
        keep_private(unready)
        try:
            unready.rename(folder)
        except OSError:
            if not (folder / manifests.VIEW_FILE).is_file():
                raise
            shutil.rmtree(unready)
    except BaseException:
        shutil.rmtree(unready, ignore_errors=True)
        raise


def _write(corpus: Corpus, directory: Path, split: Split) -> dict[str, object]:
    store, sequences = SentenceStore(corpus.directory), Sequences(corpus.directory)
    lists = json.loads((directory / "users.json").read_text("utf-8"))
    names = json.loads((directory / "vocabulary.json").read_text("utf-8"))["words"]
    users = (*lists["roster"], *lists["public"])
    division = divided(
        split, store, lists["roster"], lists["public"], corpus.manifest["split_seed"]
    )
    ranks = np.full(corpus.manifest["totals"]["words"], UNKNOWN, np.int32)
    numbers = store.numbers("words", names)
    for rank, name in enumerate(names):
        if name in numbers:  # published words may never occur
            ranks[numbers[name]] = rank
    by_subset = np.zeros((3, len(users)), np.int64)
    with ExitStack() as stack:

        def column(name: str, dtype: np.typing.DTypeLike) -> ArrayWriter:
            return stack.enter_context(ArrayWriter(directory / f"{name}.npy", dtype))

        starts, words = column("starts", np.int64), column("words", np.int32)
        threads, kinds = column("threads", np.int32), column("kinds", np.uint8)
        asked = column("public_threads", np.uint8)
        starts.append(np.zeros(1, np.int64))
        begin = store.offsets[[max(store.position(user), 0) for user in users]]
        for batch in store.batches(users):
            rows, subsets = division.subsets(batch, users, np.arange(len(batch)))
            stored = begin[batch.users[rows]] + batch.ordinals[rows]
            found, lengths = sequences.words(stored)
            starts.append(words.length + np.cumsum(lengths))
            words.append(ranks[found])
            threads.append(batch.threads[rows])
            kinds.append(sequences.kinds(stored))
            asked.append(division.asked_in_public(batch)[rows].astype(np.uint8))
            for subset in (TRAIN, VALIDATION, TEST):
                here = batch.users[rows[subsets == subset]]
                by_subset[subset] += np.bincount(here, minlength=len(users))
    examples = by_subset.sum(axis=0)
    first = offsets(examples)
    np.save(directory / "user_offsets.npy", first)
    np.save(directory / "train_ends.npy", first[:-1] + by_subset[TRAIN])
    np.save(directory / "validation_ends.npy", first[1:] - by_subset[TEST])
    of_roster = by_subset[:, : len(lists["roster"])]
    return {
        "split": split.name,
        "sentences_by_subset": dict(
            zip(("train", "validation", "test"), of_roster.sum(axis=1).tolist(), strict=True)
        ),
        "users_without_training_sentences": int(np.count_nonzero(of_roster[TRAIN] == 0)),
    }
