"""A prepared corpus: a directory of memory-mapped files with a manifest, opened in an instant.

In the directory lie `manifest.json` (`manifest`); `users.json`, `words.txt`, `tags.txt`,
`threads.txt`, `titles.txt` and `sentences/`, what the users wrote (`sentences`); `published.json`,
word and tag counts published with the data, if any; `rosters/<name>/roster.json`, the ids of each
roster, in order; and `rosters/<name>/<split>/`, their views. A view is a roster seen through a
split: the default one is made when the roster is, the others in seconds when they are first asked
for, in the cache where the corpus is read-only.
"""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpriv.datasets.cache import cache_dir, locked, new_folder
from fedpriv.datasets.stackexchange import manifest as manifests
from fedpriv.datasets.stackexchange.roster_view import open_users
from fedpriv.datasets.stackexchange.rosters import (
    RosterSpec,
    choose_roster,
    limit_public,
    roster_sha256,
)
from fedpriv.datasets.stackexchange.sentence_store import (
    Sentences,
    SentenceStore,
    Text,
    read_lines,
)
from fedpriv.datasets.stackexchange.splits import (
    BY_SENTENCE,
    BY_THREAD,
    Division,
    Kept,
    Split,
    divide,
    keep_bounded,
)
from fedpriv.datasets.stackexchange.tag_view import TagView, write_tag_view
from fedpriv.datasets.stackexchange.tag_view import open_view as open_tag_view
from fedpriv.datasets.stackexchange.vocabulary import PUBLIC, RosterVocabulary, build_vocabulary
from fedpriv.hashes import Progress, document_sha256

ROSTER_FILE = "roster.json"
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)

DIAGNOSTIC_FACTS = (
    "dropped",
    "sentences_without_label",
    "foreign_text_share",
    "foreign_text_share_by_rostered_users",
)
"""Values of a view's provenance that are counted on rostered users, and so are not released."""


def write_roster(folder: Path, ids: Sequence[str]) -> None:
    """Write the list of a roster's ids, in order, readable by its owner alone."""
    path = folder / ROSTER_FILE
    path.touch(0o600)
    path.write_text(json.dumps(list(ids)), "utf-8")


def _describe_vocabulary(vocabulary: RosterVocabulary, split: Split) -> dict[str, object]:
    public = vocabulary.source == PUBLIC
    chosen = (
        "those used by most users outside the roster, ties in sorted order"
        if public
        else "the highest counts published with the data, which include rostered users"
    )
    own = "text that users outside the roster wrote themselves (sentences and own titles)"
    tags = "posts of users outside the roster; an answer has its question's tags"
    if not split.shares_threads:
        threads = "threads for training that a user outside the roster asked"
        own = f"{own}, in {threads}"
        tags = f"posts of users outside the roster in {threads}"
    return {
        "source": vocabulary.source,
        "num_words": len(vocabulary.words),
        "num_tags": len(vocabulary.tags),
        "chosen": chosen,
        "word_counts": own if public else "published with the data",
        "word_users": own,
        "word_sentences": own,
        "tag_users": tags,
    }


class Corpus:
    """A prepared corpus; open one with `Corpus.open`."""

    def __init__(self, directory: Path, manifest: dict) -> None:
        """Wrap a manifest that was checked already; use `open` instead."""
        self.directory = directory
        self.manifest = manifest

    @classmethod
    def open(cls, directory: Path | str) -> Corpus:
        """Open and check a prepared corpus.

        Raises:
            ValueError: not a prepared corpus, of another version, or damaged; says which.
        """
        directory = Path(directory)
        return cls(directory, manifests.read(directory))

    @property
    def name(self) -> str:
        """The corpus' name."""
        return self.manifest["name"]

    @property
    def synthetic(self) -> bool:
        """Whether the text was made by a generator; tables and plots must then say so."""
        return self.manifest["synthetic"]

    @property
    def content_sha256(self) -> str:
        """Digest of all that views are made of but who is on a roster: text, seed, sizes.

        A roster that is added changes none of it. It is of rostered users' text, and so private.
        """
        named = ("files", "split_seed", "max_words", "max_tags")
        return document_sha256({name: self.manifest[name] for name in named})

    @property
    def is_part(self) -> bool:
        """Whether it was cut out of another one, for a machine of a deployment."""
        return self.manifest["source"].get("kind") == manifests.PART

    @property
    def rosters(self) -> tuple[str, ...]:
        """Names of the rosters."""
        return tuple(self.manifest["rosters"])

    @property
    def default_roster(self) -> str:
        """The roster used when none is named."""
        return self.manifest["default_roster"]

    def view(
        self,
        roster: str | None = None,
        users: int | None = None,
        split: Split = BY_THREAD,
        progress: Progress | None = None,
    ) -> TagView:
        """Open the view of one roster, split one way; it is made when it is first asked for.

        Args:
            roster: a name from `rosters`; None takes `default_roster`.
            users: keep only the first so many users of the roster, for quick tests; vocabulary
                and public users stay the same.
            split: what is for training, validation and testing.
            progress: called with (sentences done, sentences) while a view is made.

        Raises:
            ValueError: unknown roster, `users` out of range, damaged files, a split that this
                corpus cannot be given.
        """
        name = self.default_roster if roster is None else roster
        if name not in self.manifest["rosters"]:
            raise ValueError(
                f"corpus {self.name!r} has no roster {name!r}, only {', '.join(self.rosters)}; "
                "add one with `fedpriv data split`"
            )
        return self.open_view(self.view_folder(name, split, progress), name, split, users)

    def open_view(self, folder: Path, roster: str, split: Split, users: int | None) -> TagView:
        """Open a view's files that are there.

        Args:
            folder: Of the view.
            roster: The roster's name.
            split: That it was made for.
            users: As of `view`.

        Raises:
            ValueError: `users` out of range, or damaged files.
        """
        about = self._provenance(self.manifest["rosters"][roster], folder, split)
        found = open_users(folder, self.manifest, roster, split, about, users)
        return open_tag_view(folder, *found)

    def _provenance(
        self, roster: Mapping[str, Any], folder: Path, split: Split
    ) -> dict[str, object]:
        """Return the flat summary that a view gives to run folders and reports."""
        facts = manifests.read_view(folder)
        vocabulary = facts["vocabulary"]
        source = "public users" if vocabulary["source"] == PUBLIC else vocabulary["source"]
        found: dict[str, object] = {
            "split": split.describe(),
            "roster_rule": roster["rule"],
            "roster_how": roster["how"],
            "roster_looks_at_data": roster["looks_at_data"],
            "words": f"{source}: {vocabulary['chosen']}",
            "tags": f"{source}: {vocabulary['chosen']}; they order the labels",
            "word_counts": vocabulary["word_counts"],
            "word_counts_source": source,
            "word_users": vocabulary["word_users"],
            "word_sentences": vocabulary["word_sentences"],
            "tag_users": vocabulary["tag_users"],
            "foreign_text_share": facts["foreign_titles"]["share"],
            "foreign_text_share_by_rostered_users": facts["foreign_titles"][
                "share_by_rostered_users"
            ],
            "own_text_only": self.manifest["own_text_only"],
            "dropped": self.manifest["dropped"],
            "sentences_without_label": facts["sentences_without_label"],
        }
        if split.owners == "all":
            found["owners"] = "all"
            found["examples_per_owner"] = split.examples_per_owner
            found["share_dropped_for_owners"] = facts["owners"]["share_dropped"]
        if self.is_part:
            found["part"] = self.manifest["source"]["part"]
        return found

    def view_folder(self, roster: str, split: Split, progress: Progress | None = None) -> Path:
        """Return the folder of a view's files, which is made if need be.

        Raises:
            ValueError: it cannot be made, or can be written nowhere.
        """
        entry = self.manifest["rosters"][roster]

        def make(folder: Path) -> None:
            if self.is_part:
                raise ValueError(
                    f"{self.directory} is a part of a corpus, cut for split {entry['split']}, and "
                    f"has none {split.name}; cut the corpus again for the split of the run: "
                    "`fedpriv data part` with --select "
                    f"{'public' if split.selecting else 'last'}"
                )
            ids = self.listed(roster)
            declared = entry["rule"] == "declared"
            self.make_view(ids, split, folder.parent, progress, declared=declared)

        return self.find_view(roster, split.name, make)

    def find_view(self, roster: str, name: str, make: Callable[[Path], object]) -> Path:
        """Return the folder of a view, which is made if need be: in the cache if not in the corpus.

        Args:
            roster: the roster's name.
            name: the view's.
            make: makes the view in its folder, whose parent may be missing.
        """
        cached = cache_dir() / "views" / self.manifest["manifest_sha256"][:16]
        here, there = (parent / roster / name for parent in (self.directory / "rosters", cached))
        for place in (here, there):
            if (place / manifests.VIEW_FILE).is_file():
                return place
        try:
            make(here)
            return here
        except OSError as error:
            if error.errno not in _READ_ONLY:
                raise
        make(there)
        return there

    def make_view(
        self,
        roster: Sequence[str],
        split: Split,
        parent: Path,
        progress: Progress | None = None,
        *,
        declared: bool = True,
    ) -> dict[str, Any]:
        """Make the view of a roster in `parent/split.name` and return its facts.

        Two processes may make the same one; the second finds the first's.

        Args:
            roster: the rostered ids, in order.
            split: how it is divided.
            parent: where the view's folder will be.
            progress: called with (sentences done, sentences).
            declared: whether the roster may hold ids without a sentence in the corpus.

        Raises:
            ValueError: the corpus cannot be split so, or public users give no words.
        """
        manifest = self.manifest
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with new_folder(parent / split.name, complete=manifests.VIEW_FILE) as folder:
            store = SentenceStore(self.directory)
            inside = set(roster)
            public = [user for user in store.users if user not in inside]
            if split.public_users is not None:
                public = limit_public(public, split.public_users)
            division = divide(split, store, roster, public, manifest["split_seed"])
            kept: Kept | None = None
            if split.owners == "all":
                kept = self._bound_owners(split, store, roster, division, declared)
                rows = kept.rows
                division = division.without(lambda batch: ~rows[batch.rows])
            published = self.directory / "published.json"
            vocabulary = build_vocabulary(
                store,
                public,
                manifest=manifest,
                division=division,
                published=json.loads(published.read_text("utf-8")) if published.exists() else None,
            )
            facts = {
                "split": split.name,
                "num_public_users": len(public),
                **write_tag_view(
                    store,
                    folder,
                    roster=roster,
                    public_users=public,
                    vocabulary=vocabulary,
                    totals=manifest["totals"],
                    division=division,
                    listed=None if kept is None else kept.listed,
                    progress=progress,
                ),
                "vocabulary": _describe_vocabulary(vocabulary, split),
            }
            if kept is not None:
                facts["owners"] = {
                    "share_dropped": kept.share_dropped,
                    "num_training": kept.num_training,
                }
            manifests.write_view(folder, facts)
        return facts

    def _bound_owners(
        self,
        split: Split,
        store: SentenceStore,
        roster: Sequence[str],
        division: Division,
        declared: bool,
    ) -> Kept:
        if not self.manifest.get("knows_askers"):
            raise ValueError(
                f"owners all: corpus {self.name!r} does not know who asked the questions that its "
                "answers belong to, and so whose titles and tags they carry; import a Stack "
                "Exchange dump, or leave owners at account"
            )
        most = split.examples_per_owner
        return keep_bounded(store, roster, division.training, most, elsewhere_rostered=declared)

    def listed(self, name: str | None = None) -> tuple[str, ...]:
        """Return the ids of a roster, None for the default one; those that were first listed.

        Raises:
            ValueError: the list is missing or damaged.
        """
        name = self.default_roster if name is None else name
        path = self.directory / "rosters" / name / ROSTER_FILE
        try:
            ids = tuple(json.loads(path.read_text("utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(f"{path}, the ids of roster {name!r}, is damaged ({error})") from error
        if roster_sha256(ids) != self.manifest["rosters"][name]["sha256"]:
            raise ValueError(
                f"{path} has other ids than roster {name!r} was made of; put the file back from a "
                "copy"
            )
        return ids

    def whole_roster_sha256(self, name: str) -> str:
        """Return the hash of a roster's ids; on a part of a corpus that of the whole's roster."""
        entry = self.manifest["rosters"][name]
        return entry.get("whole_sha256", entry["sha256"])

    def texts(self, kind: Text) -> Sequence[str] | None:
        """Return what views' examples have as texts, by `TagExamples.texts`; None if not kept.

        Args:
            kind: Sentences, by row; or titles, by thread, or by row in a part of a corpus.
        """
        if kind == "sentence" and not self.is_part:
            return Sentences(SentenceStore(self.directory))
        path = self.directory / f"{kind}s.txt"
        return tuple(read_lines(path)) if path.is_file() else None

    def verify(self) -> None:
        """Read every file and compare its checksum (`open` compares sizes and small files).

        Raises:
            ValueError: a file is missing or differs.
        """
        manifests.check_files(self.directory, self.manifest["files"], deep=True)
        for path in sorted((self.directory / "rosters").glob(f"*/*/{manifests.VIEW_FILE}")):
            manifests.read_view(path.parent, deep=True)

    def add_roster(self, spec: RosterSpec) -> TagView:
        """Choose a roster, make its view and list it in the manifest; no new import.

        The view is the one by thread. Where public users give it no words or labels, as in files
        of a few users, it is the one by sentence, and asking for threads is an error that says why.
        Processes that add rosters wait for each other.

        Raises:
            ValueError: the name is taken, or the corpus cannot give such a roster. The corpus is
                then as it was.
        """
        ids = choose_roster(spec, SentenceStore(self.directory).num_sentences())
        place = hashlib.sha256(str(self.directory.resolve()).encode()).hexdigest()[:16]
        with locked(f"rosters-{place}", cache_dir()):
            listed = self.manifest["rosters"]
            if (self.directory / manifests.FILE_NAME).is_file():  # others may have added some
                listed = {**manifests.read(self.directory)["rosters"], **listed}
            if spec.name in listed:
                raise ValueError(
                    f"corpus {self.name!r} already has a roster {spec.name!r}, and rosters are "
                    "frozen; choose another name"
                )
            folder = self.directory / "rosters" / spec.name
            if folder.exists():  # left by an addition that was killed before its listing
                shutil.rmtree(folder)
            try:
                try:
                    facts = self.make_view(ids, BY_THREAD, folder)
                except ValueError:  # public users give no words or labels, as a few users may
                    facts = self.make_view(ids, BY_SENTENCE, folder)
                write_roster(folder, ids)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            entry = {
                "rule": spec.rule,
                "how": spec.statement(),
                "looks_at_data": spec.looks_at_data,
                "seed": spec.seed,
                "min_sentences": spec.min_sentences,
                "num_users": len(ids),
                "sha256": roster_sha256(ids),
                **facts,
            }
            found = {**self.manifest, "rosters": {**listed, spec.name: entry}}
            self.manifest = manifests.write(self.directory, found)
        first = BY_THREAD if facts["split"] == BY_THREAD.name else BY_SENTENCE
        return self.view(spec.name, split=first)
