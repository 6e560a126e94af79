"""Folds made of a few numbers, for figures that are worked out by hand."""

import numpy as np

from fedpriv.datasets.stackexchange.splits import Split
from simulations.evaluation.held_out import Fold, HeldOut, Outcomes

DATA = {"name": "made-synthetic", "synthetic": True, "roster": "six"}


def held(threads, users, trained=None, num_tags=None):
    number = len(threads)
    return HeldOut(
        users=np.array(users, np.int64),
        threads=np.array(threads, np.int64),
        trained=np.full(number, True) if trained is None else np.array(trained, bool),
        num_tags=np.ones(number, np.int64) if num_tags is None else np.array(num_tags),
    )


def outcomes(right, found=None, ndcg=None):
    right = np.array(right, np.uint8)
    return Outcomes(
        right=right,
        found=right if found is None else np.array(found, np.uint8),
        ndcg=np.array(right if ndcg is None else ndcg, np.float32),
    )


def fold(examples, number=0, data=DATA, split=None, **models):
    """A fold of models, each a list of outcomes or of what was right."""
    made = {
        name: tuple(one if isinstance(one, Outcomes) else outcomes(one) for one in seeds)
        for name, seeds in models.items()
    }
    split = Split(fold=number) if split is None else split
    return Fold(data=data, split=split, held=examples, outcomes=made)


def random_fold(number=0, threads=30, seed=0, **seeds_of):
    """A fold of random outcomes; by model how many seeds it has and how often it is right."""
    rng = np.random.default_rng([seed, number])
    names = np.repeat(np.arange(threads), rng.integers(1, 6, threads)) + 1000 * number
    examples = held(
        names,
        rng.integers(0, 12, len(names)),
        rng.random(len(names)) < 0.8,
        rng.integers(1, 5, len(names)),
    )
    return fold(
        examples,
        number,
        **{
            name: [
                outcomes(
                    rng.random(len(names)) < share,
                    rng.integers(0, examples.num_tags + 1),
                    rng.random(len(names)),
                )
                for _ in range(count)
            ]
            for name, (count, share) in seeds_of.items()
        },
    )
