"""A corpus of 60 threads that 24 users ask and answer; each has words and a tag of its own."""

from dataclasses import replace

from fedpriv.datasets.stackexchange.rosters import RosterSpec
from fedpriv.datasets.stackexchange.splits import KINDS, NUM_FOLDS, Split
from tests.datasets.corpus.sentences import said, write

THREADS, USERS, SEED = 60, 24, 3
PUBLIC = tuple(f"p{n}" for n in range(8))
ROSTERED = tuple(f"r{n:02d}" for n in range(USERS - len(PUBLIC)))
HELD = ROSTERED[2:6]  # whom the source holds out
ROSTER = RosterSpec(name="inside", rule="declared", ids=[*ROSTERED, "gone"])

SPLITS = [
    Split(kind=kind, fold=fold, measured_on=measured)
    for kind in KINDS
    if kind != "by-sentence"
    for fold in (range(NUM_FOLDS) if kind != "by-time" else [0])
    for measured in ("test", "validation")
]
SPLITS.append(Split(public_users=5))


def sentences():
    """Thread n is asked by one user and answered by three, of two sentences each."""
    users = [*PUBLIC, *ROSTERED]
    for thread in range(THREADS):
        asker = users[thread * 7 % USERS]
        answering = [users[(thread * 7 + step) % USERS] for step in (5, 11, 18)]
        for user in (asker, *answering):
            by = None if user == asker else asker
            tags, title = f"tag{thread} topic{thread % 4}", f"about title{thread}"
            for number in range(2):
                row = said(user, f"some text{number} word{thread}", tags, title, not by, by)
                day = 14_000 + thread * 13 % THREADS
                yield replace(row, thread=str(1000 + thread), day=day)


def make(directory, rows=None, **options):
    given = sentences() if rows is None else rows
    return write(directory, given, [ROSTER], split_seed=SEED, held_users=HELD, **options)


def threads_of(view, users, subset):
    """The thread numbers of users' examples."""
    return {int(view.threads[row]) for rows in view.rows(users, subset) for row in rows}
