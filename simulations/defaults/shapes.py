"""Synthetic corpora that the rule of settings is fitted on, and others that it is evaluated on.

The two sets share no seed and no shape. Sentences a user, classes, public share and how hard the
classes are to distinguish differ: the rule must not depend on these except as its inputs.
Each is made on first use.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedpriv.datasets.importers.synthetic import Shape, synthesize
from fedpriv.datasets.stackexchange.corpus import Corpus

SIZES = (100, 300, 1_000, 3_000, 10_000)
_FIRST_SEED_OF_FITTING, _FIRST_SEED_OF_EVALUATION = 1_000, 2_000


@dataclass(frozen=True, slots=True)
class Kind:
    """Properties that synthetic corpora of several sizes share.

    Attributes:
        name: In tables.
        sentences: Of a user, in the mean.
        tags: Classes.
        public_share: Users outside the roster, for each on it.
        words: Distinct words of the language, and the most that the vocabulary keeps.
        informative: As `Shape.informative`.
        off_topic: As `Shape.off_topic`.
    """

    name: str
    sentences: int
    tags: int
    public_share: float
    words: int
    informative: float
    off_topic: float

    def shape(self, num_users: int) -> Shape:
        """Return the shape of a corpus of so many rostered users."""
        return Shape(
            num_users=num_users,
            num_sentences=num_users * self.sentences,
            public_users=max(15, round(num_users * self.public_share)),
            num_words=self.words,
            num_tags=self.tags,
            num_topics=min(40, self.tags),
            informative=self.informative,
            off_topic=self.off_topic,
        )


# name, sentences, tags, public share, words, informative, off topic
FITTING = (
    Kind("middle", 20, 100, 0.10, 3_000, 0.6, 0.4),
    Kind("short", 8, 20, 0.10, 1_500, 0.7, 0.4),
    Kind("long", 60, 100, 0.05, 3_000, 0.5, 0.4),
    Kind("many classes", 20, 300, 0.30, 4_000, 0.8, 0.3),
    Kind("easy", 30, 40, 0.05, 2_000, 0.8, 0.3),
)
EVALUATION = (
    Kind("as a site", 34, 150, 0.11, 5_000, 0.55, 0.45),
    Kind("few words each", 12, 60, 0.08, 2_500, 0.7, 0.35),
    Kind("few classes", 25, 12, 0.06, 2_500, 0.5, 0.4),
    Kind("much public", 15, 200, 0.25, 3_500, 0.75, 0.4),
    Kind("little public", 45, 80, 0.03, 3_000, 0.65, 0.3),
)
HARD = (
    Kind("mostly public", 10, 60, 3.0, 2_500, 0.6, 0.4),
    Kind("nothing to learn", 8, 30, 0.5, 2_000, 0.05, 0.9),
)
"""Shapes with little or nothing to gain: public users have most of it, or words tell nothing."""
KINDS = {kind.name: kind for kind in (*FITTING, *EVALUATION, *HARD)}


def corpus(
    folder: Path, kind: Kind, num_users: int, *, number: int = 0, max_words: int | None = None
) -> Corpus:
    """Return a synthetic corpus, made on first use.

    Args:
        folder: Where corpora are kept.
        kind: Of `FITTING`, `EVALUATION` or `HARD`; it gives the first seed.
        num_users: Of the roster.
        number: Which of several that differ by their seed.
        max_words: The most that the vocabulary keeps; None for all of the kind.
    """
    first = _FIRST_SEED_OF_FITTING if kind in FITTING else _FIRST_SEED_OF_EVALUATION
    seed = first + 100 * number + list(KINDS).index(kind.name)
    name = f"synthetic-{kind.name.replace(' ', '-')}-{num_users}-{seed}"
    if max_words is not None:
        name += f"-{max_words}-words"
    path = folder / name
    if path.exists():
        return Corpus.open(path)
    return synthesize(
        path,
        seed=seed,
        shape=kind.shape(num_users),
        name=name,
        max_words=max_words or kind.words,
        max_tags=kind.tags,
    )
