"""A prepared corpus: a directory of memory-mapped files with a manifest, opened in an instant.

In the directory lie `manifest.json` (see `fedpriv.data.corpus.manifest`); `users.json`,
`words.txt`, `tags.txt`, `threads.txt`, `titles.txt` and `sentences/`, what the users wrote
(`fedpriv.data.sentences.store`); `published.json`, word and tag counts published with the data, if
any; and `rosters/<name>/<split>/`, a roster's views (`fedpriv.data.corpus.views`).
"""

from __future__ import annotations

import shutil
from pathlib import Path

from fedpriv.data.corpus import manifest as manifests
from fedpriv.data.corpus import views
from fedpriv.data.corpus.rosters import RosterSpec, choose, roster_sha256
from fedpriv.data.corpus.splits import BY_SENTENCE, BY_THREAD, Split
from fedpriv.data.corpus.view import TagView, open_view
from fedpriv.data.files.unpack import Progress
from fedpriv.data.sentences.store import SentenceStore
from fedpriv.hashes import document_sha256


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
        """Whether the text was made by a generator; every figure must then say so."""
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
        return manifests.is_part(self.manifest)

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
        roster_facts = self.manifest["rosters"][name]
        folder, facts = views.found(self.directory, self.manifest, name, split, progress)
        return open_view(
            folder,
            roster=name,
            split=split,
            about={key: self.manifest[key] for key in ("name", "synthetic", "licence", "credit")},
            provenance=views.provenance(self.manifest, roster_facts, facts, split),
            users=users,
        )

    def view_folder(self, roster: str, split: Split) -> Path:
        """Return where the files of a view lie, which is made if need be (`materialise`)."""
        return views.found(self.directory, self.manifest, roster, split, None)[0]

    def listed(self) -> tuple[str, ...]:
        """Return the ids of the default roster, from a view that is there; none is made.

        Raises:
            ValueError: there is none, or it is damaged.
        """
        return views.listed(self.directory / "rosters" / self.default_roster)

    def titles(self) -> tuple[str, ...] | None:
        """Return every thread's title, by thread number; None if titles are not kept."""
        return SentenceStore(self.directory).titles()

    def verify(self) -> None:
        """Read every file and compare its checksum (`open` compares sizes and small files).

        Raises:
            ValueError: a file is missing or differs.
        """
        manifests.verify_files(self.directory, self.manifest)
        for path in sorted((self.directory / "rosters").glob(f"*/*/{manifests.VIEW_FILE}")):
            manifests.read_view(path.parent, deep=True)

    def add_roster(self, spec: RosterSpec) -> TagView:
        """Choose a roster, make its view and list it in the manifest; no new import.

        Raises:
            ValueError: the name is taken, or the corpus cannot give such a roster. The corpus is
                then as it was.
        """
        if spec.name in self.manifest["rosters"]:
            raise ValueError(
                f"corpus {self.name!r} already has a roster {spec.name!r}, and rosters are "
                "frozen; choose another name"
            )
        store = SentenceStore(self.directory)
        roster = choose(spec, store.num_sentences())
        parent = self.directory / "rosters"
        parent.mkdir(mode=0o700, exist_ok=True)
        if (parent / spec.name).exists():  # left by an addition that was killed before its listing
            shutil.rmtree(parent / spec.name)
        try:
            facts = views.first(self.directory, self.manifest, roster, parent / spec.name)
        except BaseException:
            shutil.rmtree(parent / spec.name, ignore_errors=True)
            raise
        entry = {
            "rule": spec.rule,
            "how": spec.statement(),
            "looks_at_data": spec.looks_at_data,
            "seed": spec.seed,
            "min_sentences": spec.min_sentences,
            "num_users": len(roster),
            "sha256": roster_sha256(roster),
            **facts,
        }
        rosters = {**self.manifest["rosters"], spec.name: entry}
        self.manifest = manifests.write(self.directory, {**self.manifest, "rosters": rosters})
        return self.view(
            spec.name, split=BY_THREAD if facts["split"] == BY_THREAD.name else BY_SENTENCE
        )
