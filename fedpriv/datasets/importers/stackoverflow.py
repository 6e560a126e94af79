"""Import of StackOverflow as TFF publishes it (`tag_view` has its tag-prediction features)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal

from fedpriv.datasets.importers.writer import (
    CorpusDescription,
    Sentence,
    titled_thread,
    write_corpus,
)
from fedpriv.datasets.raw_files import read_file, tar_members
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.rosters import RosterSpec, choose_roster
from fedpriv.datasets.stackexchange.sentence_store import known_kind
from fedpriv.datasets.tff_files import ClientData, open_client_data
from fedpriv.hashes import Progress

Select = Literal["first-sorted", "seeded"]

CREDIT = (
    "Stack Overflow contributors; data set by TensorFlow Federated "
    "(tff.simulation.datasets.stackoverflow)"
)
LICENCE = "CC BY-SA 3.0"

#: Users on the roster where no number is given: as many as the AdaDPS reference takes.
ROSTER_SIZE = 400

_MAX_COUNTS_BYTES = 1 << 28


def split_words(text: str) -> list[str]:
    """Return the words of a TFF text: split at ASCII white space only, as TensorFlow splits."""
    return [word.decode() for word in text.encode().split()]


def select_roster(
    client_ids: Sequence[str], select: Select, num_users: int, seed: int = 0
) -> tuple[str, ...]:
    """Return the roster's user ids, chosen by their ids alone and never by their content.

    Args:
        client_ids: All users of the split, at least `num_users`.
        select: "first-sorted" for the first ids in sorted order, the AdaDPS reference's choice;
            "seeded" for those whose id hashes lowest under the seed, a random roster that does not
            change for one user when another one comes or goes.
        num_users: How many.
        seed: Of "seeded".
    """
    spec = RosterSpec(
        name="chosen", rule=select, size=num_users, seed=seed if select == "seeded" else None
    )
    return choose_roster(spec, dict.fromkeys(client_ids, 1))


def import_stackoverflow(
    path: Path | str,
    directory: Path | str,
    *,
    select: Select = "first-sorted",
    num_users: int | None = None,
    seed: int = 0,
    public_users: int | None = 4_000,
    split_name: str | None = None,
    tff_split: str | None = None,
    held_users: int = 100,
    word_counts: Path | str | None = None,
    tag_counts: Path | str | None = None,
    own_text_only: bool = False,
    split_seed: int = 0,
    name: str = "tff-stackoverflow",
    max_words: int = 10_000,
    max_tags: int = 500,
    progress: Progress | None = None,
) -> Corpus:
    """Import TFF's StackOverflow file as a prepared corpus.

    Vocabulary, tags and counts come from users outside the roster, unless TFF's published counts
    are given: those were counted over all users of the training split, rostered ones included, so
    the corpus then records its vocabulary as taken from private data and no ε covers it.

    Args:
        path: `stackoverflow.sqlite`, plain, `.lzma` or `.xz`.
        directory: The corpus to make; it must not exist.
        select: How the roster is chosen, see `select_roster`.
        num_users: Size of the roster. None takes 400, or four fifths of the split's users (rounded
            down) where it has at most 400, so that some stay public; the roster then says so.
        seed: Of the roster, if "seeded".
        public_users: How many users outside the roster are read, those whose ids hash lowest;
            None for all (342,077 on the full file: slow, and large).
        split_name: The split; "train" by default.
        tff_split: Another split of the file, TFF's "heldout" or "test", from which further users
            come on the roster: by the split "as-published" they train nothing and are tested on.
        held_users: How many, those whose ids hash lowest; users of `split_name` are not among them.
        word_counts: TFF's `stackoverflow.word_count.tar.bz2`, or the text file within.
        tag_counts: TFF's `stackoverflow.tag_count.tar.bz2`, or the JSON file within.
        own_text_only: Leave the title out of an example whose user did not write it (answers).
        split_seed: Of the 80/20 split of each user's examples.
        name: The corpus' name.
        max_words: Vocabulary size.
        max_tags: Number of tags.
        progress: Called with how far it is.

    Raises:
        ValueError: If the file or the counts are not TFF's, damaged, or have too few users; then
            nothing is left at `directory`.
    """
    if (word_counts is None) != (tag_counts is None):
        raise ValueError("published word counts and tag counts go together; give both or neither")
    published = None
    if word_counts is not None and tag_counts is not None:
        published = {"words": read_word_counts(word_counts), "tags": read_tag_counts(tag_counts)}
    with open_client_data(
        path, split_name=split_name, schema="stackoverflow", progress=progress
    ) as data:
        there = len(data.client_ids)
        if there < 2 and published is None:
            raise ValueError(
                f"{path} has {there} user in split {data.split_name!r}; a corpus needs at least "
                "two users, one of them outside the roster; give another file or --split-name"
            )
        usual = ROSTER_SIZE if there > ROSTER_SIZE else max(1, 4 * there // 5)
        size = usual if num_users is None else num_users
        fewer = f"give fewer, or no number to take {usual:,} of them"
        if size > there:
            raise ValueError(f"a roster of {size:,} users cannot be chosen from {there:,}; {fewer}")
        roster = select_roster(data.client_ids, select, size, seed)
        outside = set(data.client_ids) - set(roster)
        if published is None and not outside:
            raise ValueError(
                f"all {size:,} users of {path} are on the roster, which leaves none to take a "
                f"public vocabulary from; {fewer}, or give it a `--name` and `--vocabulary "
                "published`"
            )
        if public_users is not None and public_users < len(outside):
            if public_users < 1 and published is None:
                raise ValueError(f"--public-users {public_users}: at least one is needed")
            some = (
                select_roster(sorted(outside), "seeded", public_users, seed) if public_users else ()
            )
            outside = set(some)
        held = None if tff_split is None else data.of_split(tff_split)
        held_out = () if held is None else _held_out(data, held, held_users, seed)
        source = {
            "kind": "tff-stackoverflow",
            "file": Path(path).name,
            "split": data.split_name,
            "select": select,
            "seed": seed if select == "seeded" else None,
            "vocabulary": "public users"
            if published is None
            else "published by TFF, counted over all users, rostered ones too (private source)",
            "users_in_split": len(data.client_ids),
            "users_read": len(roster) + len(outside) + len(held_out),
            **({} if held is None else {"held_out_of": tff_split, "held_users": len(held_out)}),
        }
        about = CorpusDescription(
            name=name,
            synthetic=False,
            source=source,
            licence=LICENCE,
            credit=CREDIT,
            own_text_only=own_text_only,
            split_seed=split_seed,
            max_words=max_words,
            max_tags=max_tags,
        )
        dropped: Counter[str] = Counter()
        sentences = _sentences(data, outside.union(roster), dropped, progress)
        name, ids = f"tff-{len(roster)}", roster
        declared = f"{len(roster):,} of {len(data.client_ids):,} client ids, "
        if select == "first-sorted":
            declared += "the first in sorted order"
        else:
            name = f"{name}-seed-{seed}"
            declared += f"those whose hashed ids are lowest under seed {seed}"
        declared += "; chosen without looking at their content"
        if num_users is None and size < ROSTER_SIZE:
            declared += (
                f"; the split has no more than {ROSTER_SIZE} users, so four fifths are on the "
                "roster and the others are public"
            )
        if held is not None:
            sentences = chain(sentences, _sentences(held, set(held_out), dropped, progress))
            name = f"{name}-{held.split_name}-{len(held_out)}"
            ids = (*roster, *held_out)
            declared += (
                f"; and {len(held_out):,} of {len(held.client_ids):,} of TFF's split "
                f"{held.split_name}, by hashed ids, who train nothing by the split as-published"
            )
        spec = RosterSpec(name=name, rule="declared", ids=ids, declared=declared)
        return write_corpus(
            directory,
            about,
            sentences,
            [spec],
            spec.name,
            dropped=dropped,
            published=published,
            held_users=held_out,
        )


def _held_out(data: ClientData, held: ClientData, number: int, seed: int) -> tuple[str, ...]:
    """Return so many users of a split that are not in the one trained on."""
    others = sorted(set(held.client_ids) - set(data.client_ids))
    if not 1 <= number <= len(others):
        raise ValueError(
            f"--held-users {number}: split {held.split_name!r} has {len(others):,} users that are "
            f"not in split {data.split_name!r}; give a number from 1 to that many, or another "
            "--tff-split"
        )
    return select_roster(others, "seeded", number, seed)


def _sentences(
    data: ClientData, client_ids: set[str], dropped: Counter[str], progress: Progress | None
) -> Iterator[Sentence]:
    """Yield the sentences of some clients, and count those without a word."""
    total = sum(data.num_examples[client_id] for client_id in client_ids)
    for done, (client_id, example) in enumerate(data.stream(client_ids), start=1):
        if tokens := split_words(example["tokens"]):
            yield Sentence(
                user_id=client_id,
                tokens=tokens,
                title_tokens=split_words(example["title"]),
                tags=[tag for tag in example["tags"].split("|") if tag],
                own_title=example["type"] == "question",
                # The files have no question id.
                thread=titled_thread(example["title"], example["tags"]),
                kind=known_kind(example["type"]),
            )
        else:
            dropped["sentences without a word"] += 1
        if progress is not None and (done % 1_000 == 0 or done == total):
            progress(done, total)


def read_word_counts(path: Path | str) -> dict[str, int]:
    """Return TFF's published word counts: word to number of users, in the file's order.

    Raises:
        ValueError: If the file is damaged or a line is not "word count".
    """
    counts: dict[str, int] = {}
    for number, line in enumerate(_counts_text(path, "word_count").split("\n"), start=1):
        if not line.strip():
            continue
        parts = line.split()
        if len(parts) != 2 or not parts[1].isdecimal() or parts[0] in counts:
            raise ValueError(f"{path}, line {number}: {line[:60]!r} is not a new word, count")
        counts[parts[0]] = int(parts[1])
    if not counts:
        raise ValueError(f"{path} has no word counts")
    return counts


def read_tag_counts(path: Path | str) -> dict[str, int]:
    """Return TFF's published tag counts, the most used first; ties as in the file.

    Raises:
        ValueError: If the file is damaged or not a JSON object of numbers.
    """
    try:
        counts = json.loads(_counts_text(path, "tag_count"))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error})") from None
    if (
        not isinstance(counts, dict)
        or not counts
        or not all(type(value) is int and value >= 0 for value in counts.values())
    ):
        raise ValueError(f"{path} is not a JSON object of tag counts")
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def _counts_text(path: Path | str, ending: str) -> str:
    """Return the one text in a plain file or in a .tar.bz2, without writing anything to disk."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"no file {path}; fetch it with `fedpriv data fetch`")
    with path.open("rb") as file:
        packed = file.read(3) == b"BZh"
    if packed:
        members = tar_members(path, lambda name: name.endswith(ending), at_most=_MAX_COUNTS_BYTES)
        content = next((content for _, content in members), None)
        if content is None:
            raise ValueError(f"{path} holds no file whose name ends in {ending!r}")
    else:
        content = read_file(path, at_most=_MAX_COUNTS_BYTES)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8 ({error}); fetch it again") from None
