"""Corpora resampled from real text: rosters of any size, of copies of a few hundred people.

No one on the source's roster is in one. A quarter of its public users are public again; the others
are the originals that a roster is drawn from. Copies of a person are not independent: noise and ε
are those of as many users as are on the roster, words and titles are those of the originals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from fedpriv.datasets.arrays import offsets
from fedpriv.datasets.importers.writer import CorpusDescription, Sentence, write_corpus
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.rosters import RosterSpec
from fedpriv.datasets.stackexchange.sentence_store import KINDS, OWN, Sentences, SentenceStore
from fedpriv.rng import Key

KIND, SIZES = "resampled", (300, 1_000, 3_000)
_PUBLIC_SHARE = 1 / 4


def corpus(folder: Path, source: Corpus, num_users: int, *, seed: int = 0) -> Corpus:
    """Return a corpus resampled from a source's public users, made on first use.

    Those who are public again keep their ids and sentences. Each on the roster is a copy of one of
    the other originals, drawn with replacement: of as many of its threads as it has, drawn with
    replacement too, it has all that the original wrote there. Threads keep keys and titles, so what
    a split holds out is held out of every copy. Who asked a thread is known where that is the user
    itself or a public one; else it could be any of several copies, or none of the corpus.

    Args:
        folder: Where corpora are kept.
        source: With titles; its default roster says who is public.
        num_users: Of the roster.
        seed: Decides who is public, and all that is drawn.

    Raises:
        ValueError: If the source has fewer than four public users, or keeps no titles.
    """
    name = f"{source.name}-{KIND}-{num_users}-{seed}"
    if (folder / name).exists():
        return Corpus.open(folder / name)
    key = Key.simulation(seed).fold(KIND)
    users = key.fold("public").generator().permutation(source.view().public_users).tolist()
    number = int(_PUBLIC_SHARE * len(users))
    if not number:
        raise ValueError(
            f"corpus {source.name!r} has {len(users)} public users; give one with at least 4"
        )
    public, originals = users[:number], users[number:]
    drawn = key.fold("roster").generator().integers(len(originals), size=num_users).tolist()
    threads = dict(zip(users, _threads(source, users), strict=True))
    copied = ("licence", "credit", "own_text_only", "split_seed", "max_words", "max_tags")
    about = CorpusDescription(
        name=name,
        synthetic=source.synthetic,
        source={"kind": KIND, "of": source.name, "seed": seed},
        **{field: source.manifest[field] for field in copied},
    )
    ids = [f"copy-{place:05d}-of-{originals[which]}" for place, which in enumerate(drawn)]
    roster = RosterSpec(
        name=f"{KIND}-{num_users}",
        rule="declared",
        ids=ids,
        declared=f"{num_users:,} copies of {len(set(drawn)):,} users, drawn with replacement.",
    )

    def sentences() -> Iterator[Sentence]:
        for user in public:
            yield from chain.from_iterable(threads[user])
        for user, which in zip(ids, drawn, strict=True):
            own = threads[originals[which]]
            again = key.fold("user").fold(user).generator().integers(len(own), size=len(own))
            for sentence in chain.from_iterable(own[place] for place in again.tolist()):
                yield replace(sentence, user_id=user)

    return write_corpus(folder / name, about, sentences(), [roster], roster.name)


def _threads(source: Corpus, users: Sequence[str]) -> Iterator[list[list[Sentence]]]:
    """Yield each user's sentences by thread, in the order in which they were added."""
    titles = source.texts("title")
    if titles is None or source.is_part:
        raise ValueError(f"corpus {source.name!r} keeps no titles, or is a part; give a whole one")
    store = SentenceStore(source.directory)
    texts, keys, names = Sentences(store), tuple(store.thread_keys()), store.all_names("tags")
    for user in users:
        (batch,) = store.batches([user])
        tags = np.split(
            batch.tags, offsets(np.bincount(batch.tag_rows, minlength=len(batch)))[1:-1]
        )
        found: dict[int, list[Sentence]] = {}
        for text, tagged, thread, asker, day, kind in zip(
            texts.of(batch.rows),
            tags,
            batch.threads.tolist(),
            batch.askers.tolist(),
            batch.days.tolist(),
            store.kinds(batch.rows).tolist(),
            strict=True,
        ):
            found.setdefault(thread, []).append(
                Sentence(
                    user_id=user,
                    tokens=text.split(),
                    title_tokens=titles[int(thread)].split(),
                    tags=[names[tag] for tag in tagged.tolist()],
                    own_title=asker == OWN,
                    title_user_id=store.users[asker] if asker >= 0 else None,
                    thread=keys[thread],
                    day=None if day < 0 else day,
                    kind=KINDS[kind],
                )
            )
        yield list(found.values())
