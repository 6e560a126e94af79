"""Division of a corpus's view into parts: one for the server, and one for each node.

Each part is a prepared corpus of its own, which holds the view that it was cut from and no other.
Vocabulary, side information and public users are the same in all of them. The server's part lists
every rostered user and has no sentence of any; a node's lists its own users alone, with their
sentences. So a machine holds what it may read, and training on the parts is to the last bit
training on the whole.

For pretrained encoders a node's part has the text of its own users' examples, and the server's that
of public users', a line each:

    sentences.txt  in the order in which the part's first view has them
    titles.txt     of their threads; not there where the whole keeps no titles
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.datasets.arrays import offsets
from fedpriv.datasets.cache import new_folder
from fedpriv.datasets.stackexchange import manifest as manifests
from fedpriv.datasets.stackexchange.corpus import Corpus, write_roster
from fedpriv.datasets.stackexchange.rosters import roster_sha256
from fedpriv.datasets.stackexchange.sentence_store import BATCH_SENTENCES, TEXTS, Sentences
from fedpriv.datasets.stackexchange.splits import BY_THREAD, Split
from fedpriv.datasets.stackexchange.tag_view import TagView, row_positions

SERVER = "server"
#: Each node's user ids, by the name of its part; in the folder that holds the parts.
USERS_FILE = "users.json"
_PER_EXAMPLE = ("num_tokens", "labels", "threads", "public_threads")
_PUBLIC = ("vocabulary.json", "word_counts.npy", "word_users.npy", "word_sentences.npy",
           "tag_users.npy")  # fmt: skip
_PUBLIC_FACTS = ("split", "num_public_users", "num_public_sentences",
                 "examples_of_public_threads", "vocabulary")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Parts of a corpus on disk.

    Attributes:
        folder: Where the parts lie, each under its name.
        users: The ids of each node's users, by the node's name: "node-1" and so on.
    """

    folder: Path
    users: Mapping[str, tuple[str, ...]] = field(repr=False)


def cut_corpus(
    corpus: Corpus,
    folder: Path,
    *,
    nodes: int,
    roster: str | None = None,
    users: int | None = None,
    split: Split = BY_THREAD,
) -> Parts:
    """Write the parts of a corpus into a new folder; users are dealt out in turn.

    Args:
        corpus: The whole.
        folder: Where the parts will lie; must not be there yet.
        nodes: How many nodes there are.
        roster: A name from the corpus's rosters; None for its default.
        users: Keep the first so many users of the roster; None for all.
        split: What is for training, validation and testing, in every part.

    Guarantees:
        * No file of a part holds a rostered user's sentence, title or tags, or counts of them, but
          those of the part's own users, and in their answers what they answered; the server's has
          none. So public users' posts under a rostered user's question are left out.

    Raises:
        ValueError: If the folder is there, there are fewer users than nodes, or the corpus cannot
            give the view.
    """
    if folder.exists():
        raise ValueError(f"{folder} is there already; parts go into a folder of their own")
    if split.examples_per_owner is not None:
        raise ValueError(f"split {split.name} is of examples; nodes host users: leave it out")
    if corpus.is_part:
        raise ValueError(f"{corpus.directory} is a part already; cut the corpus it came from")
    view = corpus.view(roster=roster, users=users, split=split)
    if not 1 <= nodes <= len(view.roster):
        raise ValueError(
            f"nodes {nodes}: roster {view.roster_name!r} has {len(view.roster)} users here; give "
            "1 to that many"
        )
    owners = {f"node-{number + 1}": view.roster[number::nodes] for number in range(nodes)}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(folder) as unready:
        sources = [_Source.of(corpus, view)]
        if split.kind != "by-sentence":  # the server chooses the public start's settings by it
            choosing = corpus.view(roster=roster, users=users, split=split.choosing())
            sources.append(_Source.of(corpus, choosing))
        texts = {kind: corpus.texts(kind) for kind in TEXTS}
        _write(sources, texts, unready / SERVER, listed=view.roster, held=())
        for name, local in owners.items():
            _write(sources[:1], texts, unready / name, listed=local, held=local)
        (unready / USERS_FILE).write_text(json.dumps(owners, indent=1), "utf-8")
    return Parts(folder=folder, users=owners)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """The files of a view, mapped, and where each user's examples start."""

    corpus: Corpus
    view: TagView
    folder: Path
    facts: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]
    places: Mapping[str, int]

    @classmethod
    def of(cls, corpus: Corpus, view: TagView) -> _Source:
        folder = corpus.view_folder(view.roster_name, view.split)
        listed = json.loads((folder / "users.json").read_text("utf-8"))
        everybody = (*listed["roster"], *listed["public"])
        return cls(
            corpus=corpus,
            view=view,
            folder=folder,
            facts=json.loads((folder / manifests.VIEW_FILE).read_text("utf-8"))["facts"],
            arrays={path.stem: np.load(path, mmap_mode="r") for path in folder.glob("*.npy")},
            places={user: place for place, user in enumerate(everybody)},
        )

    def write(
        self,
        part: Path,
        *,
        listed: Sequence[str],
        held: Sequence[str],
        kept: Mapping[str, dict[int, int]],
    ) -> Mapping[str, Any]:
        """Write a view with the examples of `held` users and of public ones; return its facts.

        Texts that the part is to keep are added to `kept`, from numbers in the whole to those in
        the part.
        """
        name, split = self.view.roster_name, self.view.split
        where = part / "rosters" / name / split.name
        where.mkdir(mode=0o700, parents=True)
        for public in _PUBLIC:
            shutil.copyfile(self.folder / public, where / public)
        ids = {"roster": list(listed), "public": list(self.view.public_users)}
        (where / "users.json").write_text(json.dumps(ids), "utf-8")
        write_roster(where.parent, listed)
        rows, num_own = self._write_examples(where, listed, frozenset(held))
        num_public = len(rows) - num_own
        textless = np.full(num_public if held else 0, -1)
        for column, numbers in zip(("sentences", "threads"), kept.values(), strict=True):
            places = [
                numbers.setdefault(number, len(numbers))
                for number in self.arrays[column][rows[: len(rows) - len(textless)]].tolist()
            ]
            file = "titles" if column == "threads" else column
            np.save(where / f"{file}.npy", np.concatenate([places, textless]).astype(np.int64))
        facts = {key: self.facts[key] for key in _PUBLIC_FACTS}
        facts |= {"num_examples": num_own, "num_public_examples": num_public, **_UNCOUNTED}
        manifests.write_view(where, facts)
        return facts

    def _write_examples(
        self, where: Path, listed: Sequence[str], held: frozenset[str]
    ) -> tuple[np.ndarray, int]:
        """Write the columns; return the examples' rows, and how many are of listed users."""
        own, public = self.arrays, self.view.public_users
        asked_in_public = own["public_threads"] > 0
        chosen: list[np.ndarray] = []
        ends = {"train_ends": list[int](), "validation_ends": list[int]()}
        for number, user in enumerate((*listed, *public)):
            place = self.places[user]
            rows = np.arange(*own["user_offsets"][place : place + 2])
            if number >= len(listed):
                # Where a rostered user asked, its title and tags stand in the answer's example.
                rows = rows[asked_in_public[rows]]
            elif user not in held:
                rows = rows[:0]
            chosen.append(rows)
            for name, before in ends.items():
                before.append(int(np.count_nonzero(rows < own[name][place])))
        first = offsets(np.array([len(rows) for rows in chosen], np.int64))
        np.save(where / "user_offsets.npy", first)
        for name, before in ends.items():
            np.save(where / f"{name}.npy", first[:-1] + np.array(before, np.int64))
        rows = np.concatenate(chosen)
        for column in _PER_EXAMPLE:
            np.save(where / f"{column}.npy", own[column][rows])
        for start, columns in (("word_offsets", ("words", "counts")), ("tag_offsets", ("tags",))):
            begins, entries = row_positions(own[start], rows)
            np.save(where / f"{start}.npy", begins)
            for column in columns:
                np.save(where / f"{column}.npy", own[column][entries])
        return rows, int(first[len(listed)])


def _write(
    sources: Sequence[_Source],
    texts: Mapping[str, Sequence[str] | None],
    part: Path,
    *,
    listed: Sequence[str],
    held: Sequence[str],
) -> None:
    """Write a part: its views, of which the first is the one it is known by, and its manifest."""
    kept: dict[str, dict[int, int]] = {kind: {} for kind in texts}
    facts, *_ = [s.write(part, listed=listed, held=held, kept=kept) for s in sources]
    for kind, whole in texts.items():
        if whole is not None:
            _write_texts(part / f"{kind}s.txt", whole, [*kept[kind]])
    whole, name = sources[0].corpus.manifest, sources[0].view.roster_name
    published = ("rule", "how", "looks_at_data", "seed")
    entry = {key: whole["rosters"][name].get(key) for key in published}
    copied = ("name", "synthetic", "licence", "credit", "own_text_only", "split_seed",
              "max_words", "max_tags", "version")  # fmt: skip
    about = {
        "source": {"kind": manifests.PART, "part": part.name},
        "totals": {},
        "dropped": {},
        "default_roster": name,
        "rosters": {
            name: {
                **entry,
                **facts,
                "num_users": len(listed),
                "sha256": roster_sha256(listed),
                "whole_sha256": whole["rosters"][name]["sha256"],
            }
        },
        "files": manifests.describe_files(part, part),
    }
    manifests.write(part, {key: whole[key] for key in copied} | about)


def _write_texts(path: Path, whole: Sequence[str], numbers: Sequence[int]) -> None:
    with path.open("x", encoding="utf-8", newline="\n") as file:
        for start in range(0, len(numbers), BATCH_SENTENCES):
            some = numbers[start : start + BATCH_SENTENCES]
            found = whole.of(some) if isinstance(whole, Sentences) else map(whole.__getitem__, some)
            file.writelines(f"{text}\n" for text in found)


#: Counts on rostered users of a whole view, which a part leaves out.
_UNCOUNTED: dict[str, Any] = {
    "sentences_without_label": {},
    "foreign_titles": {"share": None, "share_by_rostered_users": None},
}
