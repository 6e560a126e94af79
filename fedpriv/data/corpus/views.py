"""A roster's views: found in the corpus, or made when one is first asked for.

A view is a roster seen through a split. The default one is made when the roster is; the others take
seconds, once. Where the corpus is read-only they go into the cache.
"""

from __future__ import annotations

import errno
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedpriv.data.corpus import manifest as manifests
from fedpriv.data.corpus import vocabulary as vocabularies
from fedpriv.data.corpus.division import (
    Division,
    divided,
    training,
    with_kept,
    without_public_threads,
)
from fedpriv.data.corpus.materialise import Facts, materialise
from fedpriv.data.corpus.rosters import fewer_public
from fedpriv.data.corpus.splits import BY_SENTENCE, BY_THREAD, Split
from fedpriv.data.corpus.vocabulary import PUBLIC, RosterVocabulary
from fedpriv.data.files.cache import cache_dir
from fedpriv.data.files.places import keep_private
from fedpriv.data.files.unpack import Progress
from fedpriv.data.owners.graph import Graph
from fedpriv.data.owners.kept import Kept, kept
from fedpriv.data.sentences.store import SentenceStore

COUNTED = (
    "dropped",
    "sentences_without_label",
    "foreign_text_share",
    "foreign_text_share_by_rostered_users",
)
"""What of a view's provenance is counted on rostered users; a share to the last digit is, too."""

READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
"""Error numbers of a corpus that nothing can be written into."""


def found(
    corpus: Path, manifest: Mapping[str, Any], roster: str, split: Split, progress: Progress | None
) -> tuple[Path, Mapping[str, Any]]:
    """Return a view's folder and facts, making it if need be.

    Raises:
        ValueError: it is damaged, cannot be made, or can be written nowhere.
    """
    parent = corpus / "rosters" / roster
    if manifest["version"] == manifests.WITHOUT_THREADS:
        if split.kind != "by-sentence":
            raise ValueError(
                f"{corpus} was prepared before threads were kept, so it cannot be split "
                f"{split.kind}; import it again, or choose split by-sentence"
            )
        if split.public_users is not None:
            raise ValueError(
                f"{corpus} was prepared before public users could be fewer; import it again, or "
                f"leave public-users {split.public_users} out"
            )
        # Its own views lie in the roster's folder; those of rosters added since, one below.
        added = (parent / split.name / manifests.VIEW_FILE).is_file()
        return (parent / split.name if added else parent), manifest["rosters"][roster]
    elsewhere = cache_dir() / "views" / manifest["manifest_sha256"][:16] / roster
    for place in (parent / split.name, elsewhere / split.name):
        if (place / manifests.VIEW_FILE).is_file():
            return place, manifests.read_view(place)
    if manifests.is_part(manifest):
        raise ValueError(
            f"{corpus} is a part of a corpus, cut for split "
            f"{manifest['rosters'][roster]['split']}, and has none {split.name}; cut the corpus "
            "again for the split of the run: `fedpriv data part` with --select "
            f"{'public' if split.selecting else 'last'}"
        )
    ids = listed(parent)
    declared = manifest["rosters"][roster]["rule"] == "declared"

    def made(where: Path) -> tuple[Path, Mapping[str, Any]]:
        facts = make(corpus, manifest, ids, split, where, progress, declared=declared)
        return where / split.name, facts

    try:
        return made(parent)
    except PermissionError:
        pass
    except OSError as error:
        if error.errno not in READ_ONLY:
            raise
    return made(elsewhere)


def listed(parent: Path) -> tuple[str, ...]:
    """Return the ids of a roster, from a view of it.

    Raises:
        ValueError: there is no view, or it is damaged.
    """
    where = _any_view(parent)
    manifests.read_view(where)
    return tuple(json.loads((where / "users.json").read_text("utf-8"))["roster"])


def first(
    corpus: Path, manifest: Mapping[str, Any], roster: Sequence[str], parent: Path
) -> dict[str, Any]:
    """Make the view that a new roster is published with, and return its facts.

    It is the default one, by thread. Where public users give it no words or labels, as in files of
    a few users, it is the one by sentence, and asking for threads is an error that says why.

    Raises:
        ValueError: neither can be made.
    """
    try:
        return make(corpus, manifest, roster, BY_THREAD, parent)
    except ValueError:
        return make(corpus, manifest, roster, BY_SENTENCE, parent)


def make(
    corpus: Path,
    manifest: Mapping[str, Any],
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
        corpus: the corpus's folder.
        manifest: what it says.
        roster: the rostered ids, in order.
        split: how it is divided.
        parent: where the view's folder will be.
        progress: called with (sentences done, sentences).
        declared: whether the roster may hold ids without a sentence in the corpus.

    Raises:
        ValueError: the corpus cannot be split so, or public users give no words.
    """
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unready = Path(tempfile.mkdtemp(prefix=f".{split.name}.partial-", dir=parent))
    try:
        facts = _write(corpus, manifest, roster, split, unready, progress, declared)
        manifests.write_view(unready, facts)
        keep_private(unready)
        try:
            unready.rename(parent / split.name)
        except OSError:
            if not (parent / split.name / manifests.VIEW_FILE).is_file():
                raise
            shutil.rmtree(unready)
    except BaseException:
        shutil.rmtree(unready, ignore_errors=True)
        raise
    return facts


def _any_view(parent: Path) -> Path:
    for path in sorted(parent.glob(f"*/{manifests.VIEW_FILE}")):
        return path.parent
    raise ValueError(f"{parent} holds no view; import the corpus again")


def _write(
    corpus: Path,
    manifest: Mapping[str, Any],
    roster: Sequence[str],
    split: Split,
    directory: Path,
    progress: Progress | None,
    declared: bool,
) -> dict[str, Any]:
    store = SentenceStore(corpus)
    inside = set(roster)
    public = [user for user in store.users if user not in inside]
    if split.public_users is not None:
        public = fewer_public(public, split.public_users)
    division = divided(split, store, roster, public, manifest["split_seed"])
    if split.selecting:
        division = without_public_threads(division, store, roster, public)
    left: Kept | None = None
    if split.owners == "all":
        left = _kept(manifest, split, store, roster, division, declared)
        division = with_kept(division, left, roster)
    totals = manifest["totals"]
    sizes = totals["words"], totals["tags"]
    published = corpus / "published.json"
    vocabulary = vocabularies.build(
        store,
        public,
        sizes=sizes,
        max_words=manifest["max_words"],
        max_tags=manifest["max_tags"],
        division=division,
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
        division=division,
        listed=None if left is None else left.listed,
        progress=progress,
    )
    if not store.knows_threads:  # as views of that version: not known is not "no one asked"
        for name in ("threads", "public_threads"):
            (directory / f"{name}.npy").unlink()
    found = _facts(len(public), vocabulary, facts, split)
    if left is None:
        return found
    found["owners"] = {"share_dropped": left.share_dropped, "num_training": left.num_training}
    return found


def _kept(
    manifest: Mapping[str, Any],
    split: Split,
    store: SentenceStore,
    roster: Sequence[str],
    division: Division,
    declared: bool,
) -> Kept:
    # Corpora of dumps that were prepared before it was written down knew as well who asked.
    of_dump = manifest["source"].get("kind") == "Stack Exchange dump"
    if not manifest.get("knows_askers", of_dump):
        raise ValueError(
            f"owners all: corpus {manifest['name']!r} does not know who asked the questions that "
            "its answers belong to, and so whose titles and tags they carry; import a Stack "
            "Exchange dump, or leave owners at account"
        )
    graph = Graph.of(store, roster, elsewhere_rostered=declared)
    most = split.examples_per_owner
    return kept(graph, roster, partial(training, division), most)


def _facts(
    num_public: int, vocabulary: RosterVocabulary, facts: Facts, split: Split
) -> dict[str, Any]:
    examples = max(facts.num_examples, 1)
    names = ("train", "validation", "test")
    return {
        "split": split.name,
        "num_public_users": num_public,
        "num_examples": facts.num_examples,
        "num_public_examples": facts.num_public_examples,
        "num_public_sentences": vocabulary.num_sentences,
        "examples_by_subset": dict(zip(names, facts.subsets, strict=True)),
        "examples_of_public_threads": dict(zip(names, facts.public_subsets, strict=True)),
        "users_without_training_examples": facts.without_training,
        "sentences_without_label": dict(
            zip(("rostered", "public"), facts.without_label, strict=True)
        ),
        "foreign_titles": {
            "share": facts.foreign_titles / examples,
            "share_by_rostered_users": facts.rostered_titles / examples,
        },
        "vocabulary": _vocabulary_facts(vocabulary, split),
    }


def provenance(
    manifest: Mapping[str, Any], roster: Mapping[str, Any], facts: Mapping[str, Any], split: Split
) -> dict[str, object]:
    """Return the flat summary that a view gives to run folders and reports."""
    vocabulary = facts["vocabulary"]
    source = "public users" if vocabulary["source"] == PUBLIC else vocabulary["source"]
    owned: dict[str, object] = {}
    if split.owners == "all":
        owned = {
            "owners": "all",
            "examples_per_owner": split.examples_per_owner,
            "share_dropped_for_owners": facts["owners"]["share_dropped"],
        }
    return {
        "split": split.said(),
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
        "foreign_text_share_by_rostered_users": facts["foreign_titles"]["share_by_rostered_users"],
        "own_text_only": manifest["own_text_only"],
        "dropped": manifest["dropped"],
        "sentences_without_label": facts["sentences_without_label"],
        **owned,
        **({"part": manifest["source"]["part"]} if manifests.is_part(manifest) else {}),
    }


def _vocabulary_facts(vocabulary: RosterVocabulary, split: Split) -> dict[str, object]:
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
