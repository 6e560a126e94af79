"""A split's own rules, and the hash that says which part a thread is in."""

import pytest

from fedpriv.datasets.stackexchange.splits import (
    KINDS,
    NUM_FOLDS,
    TEST,
    TRAIN,
    VALIDATION,
    Split,
    thread_part,
)
from tests.harness.refusals import refuses

# Worked out apart: fifths of the first eight bytes of SHA-256 of "fedpriv fold of threads SEED",
# a zero byte and the key; validation is fifth 0 of "fedpriv fold of validation SEED".
GOLDEN = {  # (key, seed): the fold that tests on it, and whether it is for validation otherwise
    ("1", 0): (0, True),
    ("1", 7): (3, False),
    ("42", 0): (0, False),
    ("42", 7): (1, True),
    ("31415", 0): (4, False),
    ("31415", 7): (1, False),
    ("t-é", 0): (0, True),
}


@pytest.mark.parametrize(("key", "seed"), GOLDEN)
def test_the_part_of_a_thread_is_what_it_always_was(key, seed):
    tested, validates = GOLDEN[key, seed]
    for fold in range(NUM_FOLDS):
        otherwise = VALIDATION if validates else TRAIN
        assert thread_part(key, fold, seed) == (TEST if fold == tested else otherwise)


def test_names_tell_splits_apart():
    splits = [Split(kind=kind) for kind in KINDS]
    splits += [split.choosing() for split in splits if split.kind != "by-sentence"]
    splits += [Split(kind=kind, fold=3) for kind in ("by-thread", "by-user", "as-published")]
    assert (
        len({split.name for split in splits}) == len({split.describe() for split in splits}) == 12
    )


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"kind": "by-tag"}, "'by-tag'"),
        ({"fold": 5}, 5),
        ({"kind": "by-time", "fold": 1}, "'by-time'"),
        ({"measured_on": "train"}, "measured-on 'train'"),
        ({"kind": "by-sentence", "measured_on": "validation"}, "by-sentence"),
    ],
)
def test_what_there_is_not_is_refused(wrong, name):
    with refuses(ValueError, name):
        Split(**wrong)
