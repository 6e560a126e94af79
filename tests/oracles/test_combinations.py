"""Two options together have both effects, or are refused: see `combinations`."""

import json

import pytest

from tests.oracles import combinations

PAIRS = list(combinations.pairs())
REFUSED = set(json.loads(combinations.REFUSED.read_text("utf-8")))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # A tenth runs by default.
        pytest.param(*pair, id=combinations.name_of(*pair),
                     marks=() if number % 10 == 4 else pytest.mark.slow)
        for number, pair in enumerate(PAIRS)
    ],
)  # fmt: skip
def test_each_value_has_its_effect_beside_the_other(one, other):
    """Or is refused, if that is recorded: `python -m tests.oracles.combinations --record`."""
    reason = combinations.check(one, other)
    assert (reason is not None) == (combinations.name_of(one, other) in REFUSED), reason


def test_every_recorded_pair_is_one():
    assert {combinations.name_of(*pair) for pair in PAIRS} >= REFUSED


def test_every_value_is_in_a_pair_that_runs_by_default():
    run = {place for pair in PAIRS[4::10] for place in pair}
    assert run == {(axis, value) for axis in combinations.AXES for value in combinations.AXES[axis]}


def test_an_option_that_is_ignored_is_noticed(monkeypatch):
    """A rate schedule that nothing reads."""
    value = combinations.AXES["rate schedule"]["cosine"]
    ignored = combinations.Value(value.effect, {})
    monkeypatch.setitem(combinations.AXES["rate schedule"], "cosine", ignored)
    combinations.run.cache_clear()
    with pytest.raises(AssertionError, match="moves_later"):
        combinations.check(("bound", "normalise"), ("rate schedule", "cosine"))
    combinations.run.cache_clear()
