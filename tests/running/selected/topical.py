"""A corpus of threads about four topics, of which words tell, and short runs on it."""

from dataclasses import replace

import numpy as np

from fedpriv.datasets.stackexchange.rosters import RosterSpec
from fedpriv.experiments.load import load_experiment
from fedpriv.runs.prepared import start_run
from tests.datasets.corpus.sentences import said, write

PUBLIC = tuple(f"p{n:02d}" for n in range(10))
ROSTERED = tuple(f"r{n:02d}" for n in range(30))
ALONE = "r08"
ROSTER = RosterSpec(name="inside", rule="declared", ids=ROSTERED)
NAME = "adadps-tags"
OPTIONS = {
    "rounds": 3, "cohort": 15.0, "target-epsilon": 40.0, "l2-clip-norm": 1.0, "delta": 1e-3,
    "eval-every": 1,
}  # fmt: skip


def sentences(threads=120):
    """Threads are asked and answered by anybody; the first by one rostered user alone."""
    users = [*ROSTERED, *PUBLIC]
    for number in range(2):
        row = said(ALONE, f"common1 about{number}0", f"topic{number}")
        yield replace(row, thread="0001", day=13_000)
    for thread in range(threads):
        rng = np.random.default_rng(thread)
        topic = int(rng.integers(4))
        asker, *answering = rng.choice(len(users), 3, replace=False).tolist()
        for user in (asker, *answering):
            for number in range(2):
                words = rng.integers(10, size=3)
                text = [*(f"common{w}" for w in words), f"about{topic}{rng.integers(6)}"]
                own, by = user == asker, None if user == asker else users[asker]
                row = said(users[user], " ".join(text), f"topic{topic}", f"only{thread}", own, by)
                day = 14_000 + 10 * thread + number
                yield replace(row, thread=str(5000 - 7 * thread), day=day)


def asked_otherwise(row, words):
    """The row, with another title and tags if a rostered user asked it: others' answers have them.

    Args:
        row: Anybody's.
        words: "others" exchanges them; "none" is what a removed question leaves of them.
    """
    asker = row.user_id if row.own_title else row.title_user_id
    if asker not in ROSTERED:
        return row
    if words == "none":
        return replace(row, title_tokens=[], tags=[])
    other = f"topic{(int(row.tags[0].removeprefix('topic')) + 1) % 4}"
    return replace(row, title_tokens=["common0", "common0", "about00"], tags=[other])


def make_in_letters(directory):
    """Return the corpus with letters for digits, of which a tiny encoder's pieces are."""
    letters = str.maketrans("0123456789", "abcdefghij")

    def in_letters(words):
        return [word.translate(letters) for word in words]

    rows = (
        replace(row, tokens=in_letters(row.tokens), title_tokens=in_letters(row.title_tokens))
        for row in sentences()
    )
    return write(directory, rows, [ROSTER], split_seed=3)


def make(directory, *, without=(), threads=120, asked=None):
    """Return the corpus, without the records of some users, or as `asked_otherwise`."""
    rows = [row for row in sentences(threads) if row.user_id not in without]
    if asked is not None:
        rows = [asked_otherwise(row, asked) for row in rows]
    return write(directory, rows, [ROSTER], split_seed=3)


def experiment(**changes):
    given = {name.replace("_", "-"): value for name, value in changes.items()}
    return load_experiment(NAME).with_options({**OPTIONS, **given})


def start(corpus, out, *, secure=False, **changes):
    return start_run(experiment(**changes), NAME, corpus, out, secure=secure)
