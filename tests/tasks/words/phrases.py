"""A synthetic corpus of phrases: after a word comes the next one of its phrase, mostly."""

import numpy as np

from fedpriv.datasets.importers.writer import Sentence
from fedpriv.datasets.stackexchange.rosters import RosterSpec
from tests.datasets.corpus.sentences import write as write_corpus

PHRASES = [["the", "cat", "sat", "down"], ["a", "dog", "ran", "away", "home"], ["we", "ship", "it"]]
ROSTERED = tuple(f"u{number:02d}" for number in range(14))
PUBLIC = tuple(f"p{number}" for number in range(6))


def sentences():
    for number, user in enumerate((*PUBLIC, *ROSTERED)):
        rng = np.random.default_rng(number)
        for thread in range(6):
            for _ in range(1 + number % 3):
                words = [word for n in rng.integers(3, size=2) for word in PHRASES[n]]
                words[int(rng.integers(len(words)))] = f"rare{user}"
                asks = thread % 2 == 0
                yield Sentence(
                    user_id=user,
                    tokens=words if thread else words[:1],
                    title_tokens=["titled"],
                    tags=[f"t{thread % 3}"],
                    own_title=asks,
                    title_user_id=None if asks else "p0",
                    thread=f"{user}-{thread}",
                    kind="question" if asks else "answer",
                )


def write(folder, given=None, **options):
    settings = {"name": "phrases", "source": {}, "credit": "a generator", "max_words": 40}
    rows = sentences() if given is None else given
    spec = RosterSpec(name="inside", rule="declared", ids=list(ROSTERED))
    return write_corpus(folder, rows, [spec], **settings | options)
