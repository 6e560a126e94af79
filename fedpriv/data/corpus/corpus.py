"""A prepared corpus: a directory of memory-mapped files with a manifest, opened in an instant.

In the directory lie `manifest.json` (see `fedpriv.data.corpus.manifest`); `users.json`,
`words.txt`, `tags.txt` and `sentences/`, what the users wrote (`fedpriv.data.corpus.store`);
`published.json`, word and tag counts published with the data, if any; and `rosters/<name>/`, one
view for each roster (`fedpriv.data.corpus.materialise`).
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from fedpriv.data.corpus import manifest as manifests
from fedpriv.data.corpus import vocabulary as vocabularies
from fedpriv.data.corpus.materialise import Facts, materialise
from fedpriv.data.corpus.rosters import RosterSpec, choose, roster_sha256
from fedpriv.data.corpus.store import SentenceStore
from fedpriv.data.corpus.view import TagView, open_view
from fedpriv.data.corpus.vocabulary import PUBLIC, RosterVocabulary


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
    def rosters(self) -> tuple[str, ...]:
        """Names of the rosters."""
        return tuple(self.manifest["rosters"])

    @property
    def default_roster(self) -> str:
        """The roster used when none is named."""
        return self.manifest["default_roster"]

    def view(self, roster: str | None = None, users: int | None = None) -> TagView:
        """Open the view of one roster.

        Args:
            roster: a name from `rosters`; None takes `default_roster`.
            users: keep only the first so many users of the roster, for quick tests; vocabulary
                and public users stay the same.

        Raises:
            ValueError: unknown roster, `users` out of range, damaged files.
        """
        name = self.default_roster if roster is None else roster
        if name not in self.manifest["rosters"]:
            raise ValueError(
                f"corpus {self.name!r} has no roster {name!r}, only {', '.join(self.rosters)}; "
                "add one with `fedpriv data split`"
            )
        return open_view(
            self.directory / "rosters" / name,
            roster=name,
            about={key: self.manifest[key] for key in ("name", "synthetic", "licence", "credit")},
            provenance=_provenance(self.manifest, self.manifest["rosters"][name]),
            users=users,
        )

    def verify(self) -> None:
        """Read every file and compare its checksum (`open` compares sizes and small files).

        Raises:
            ValueError: a file is missing or differs.
        """
        manifests.verify_files(self.directory, self.manifest)

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
        parent = self.directory / "rosters"
        parent.mkdir(exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{spec.name}.partial-", dir=parent))
        final = parent / spec.name
        try:
            entry = self._materialise(spec, partial)
            if final.exists():  # left by an addition that was killed before it was listed
                shutil.rmtree(final)
            partial.chmod(0o755)
            partial.rename(final)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        self.manifest = manifests.write(
            self.directory,
            {
                **self.manifest,
                "rosters": {**self.manifest["rosters"], spec.name: entry},
                "files": {
                    **self.manifest["files"],
                    **manifests.describe_files(self.directory, final),
                },
            },
        )
        return self.view(spec.name)

    def _materialise(self, spec: RosterSpec, directory: Path) -> dict[str, object]:
        store = SentenceStore(self.directory)
        roster = choose(spec, store.num_sentences())
        inside = set(roster)
        public = [user for user in store.users if user not in inside]
        totals = self.manifest["totals"]
        sizes = totals["words"], totals["tags"]
        published = self.directory / "published.json"
        vocabulary = vocabularies.build(
            store,
            public,
            sizes=sizes,
            max_words=self.manifest["max_words"],
            max_tags=self.manifest["max_tags"],
            published=json.loads(published.read_text("utf-8")) if published.exists() else None,
        )
        facts = materialise(
            store,
            directory,
            roster=roster,
            public_users=public,
            vocabulary=vocabulary,
            sizes=sizes,
            largest_count=totals["most_tokens_in_a_sentence"],
            split_seed=self.manifest["split_seed"],
        )
        return _entry(spec, roster, len(public), vocabulary, facts)


def _entry(
    spec: RosterSpec,
    roster: tuple[str, ...],
    num_public: int,
    vocabulary: RosterVocabulary,
    facts: Facts,
) -> dict[str, object]:
    examples = max(facts.num_examples, 1)
    return {
        "rule": spec.rule,
        "how": spec.statement(),
        "looks_at_data": spec.looks_at_data,
        "seed": spec.seed,
        "min_sentences": spec.min_sentences,
        "num_users": len(roster),
        "sha256": roster_sha256(roster),
        "num_public_users": num_public,
        "num_examples": facts.num_examples,
        "num_public_examples": facts.num_public_examples,
        "num_public_sentences": vocabulary.num_sentences,
        "sentences_without_label": dict(
            zip(("rostered", "public"), facts.without_label, strict=True)
        ),
        "foreign_titles": {
            "share": facts.foreign_titles / examples,
            "share_by_rostered_users": facts.rostered_titles / examples,
        },
        "vocabulary": _vocabulary_entry(vocabulary),
    }


def _provenance(manifest: dict, entry: dict) -> dict[str, object]:
    """Return the flat summary that a view hands to run folders and reports."""
    vocabulary = entry["vocabulary"]
    source = "public users" if vocabulary["source"] == PUBLIC else vocabulary["source"]
    return {
        "roster_rule": entry["rule"],
        "roster_how": entry["how"],
        "roster_looks_at_data": entry["looks_at_data"],
        "words": f"{source}: {vocabulary['chosen']}",
        "tags": f"{source}: {vocabulary['chosen']}; they order the labels",
        "word_counts": vocabulary["word_counts"],
        "word_counts_source": source,
        "word_users": vocabulary["word_users"],
        "word_sentences": vocabulary["word_sentences"],
        "tag_users": vocabulary["tag_users"],
        "foreign_text_share": entry["foreign_titles"]["share"],
        "foreign_text_share_by_rostered_users": entry["foreign_titles"]["share_by_rostered_users"],
        "own_text_only": manifest["own_text_only"],
        "dropped": manifest["dropped"],
        "sentences_without_label": entry["sentences_without_label"],
    }


def _vocabulary_entry(vocabulary: RosterVocabulary) -> dict[str, object]:
    public = vocabulary.source == PUBLIC
    chosen = (
        "those used by most users outside the roster, ties in sorted order"
        if public
        else "the highest counts published with the data, which include rostered users"
    )
    own = "text that users outside the roster wrote themselves (sentences and own titles)"
    return {
        "source": vocabulary.source,
        "num_words": len(vocabulary.words),
        "num_tags": len(vocabulary.tags),
        "chosen": chosen,
        "word_counts": own if public else "published with the data",
        "word_users": own,
        "word_sentences": own,
        "tag_users": "posts of users outside the roster; an answer has its question's tags",
    }
