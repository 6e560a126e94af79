"""Which model is selected on public examples, and how often one that is no better."""

import numpy as np
import pytest

from fedpriv.rng import Key
from fedpriv.training.public_selection import FEWEST_GROUPS, LEVEL, judge

KEY = Key.simulation(5)
MODELS = 12


def family(seed, groups, *, gain=0.0):
    """Models that are right about as often as the reference; what they share varies by group.

    Args:
        seed: Of the draw.
        groups: How many there are; they have 2 to about 10 examples each.
        gain: Share of the first model's errors that are mended.
    """
    rng = np.random.default_rng(seed)
    of = np.repeat(np.arange(groups), 1 + rng.geometric(0.35, groups))
    hard = rng.normal(-0.5, 1.0, (groups, 1)) + rng.normal(size=(groups, MODELS + 1))
    right = rng.random((len(of), MODELS + 1)) < (1.0 / (1.0 + np.exp(-hard)))[of]
    right[:, 1] |= rng.random(len(of)) < gain
    names = ["reference", *(f"model {number}" for number in range(1, MODELS + 1))]
    return {name: right[:, place] * 1.0 for place, name in enumerate(names)}, of


def selected(values, groups, **options):
    return judge(values, groups, reference="reference", key=KEY, **options).selected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("groups", "repetitions"),
    [(FEWEST_GROUPS, 400), (30, 400), pytest.param(200, 400, marks=pytest.mark.slow)],
)
def test_a_model_that_is_no_better_is_seldom_selected(groups, repetitions):
    """In 5 % of the repetitions + 2.33 standard errors: a true rate of 5 % passes in 99 of 100."""
    wrong = sum(selected(*family(seed, groups)) != "reference" for seed in range(repetitions))
    alarm = 1.0 - LEVEL
    assert wrong <= repetitions * alarm + 2.33 * (repetitions * alarm * (1 - alarm)) ** 0.5


def test_of_equal_models_the_first_is_selected():
    values, groups = family(1, 60, gain=0.7)
    better, worse = values["model 1"], values["reference"]
    twins = {"b": better, "reference": worse, "a": better.copy()}
    assert selected(twins, groups) == "b"
    assert selected({"a": better, **twins}, groups) == "a"
    # One that is ahead by less than a standard error of the difference does not overtake it.
    ahead = better.copy()
    ahead[np.flatnonzero(better == 0.0)[:3]] = 1.0
    ahead[np.flatnonzero(better == 1.0)[-2:]] = 0.0
    assert selected({"b": better, "ahead": ahead, "reference": worse}, groups) == "b"
    far = np.ones_like(better)
    assert selected({"b": better, "far": far, "reference": worse}, groups) == "far"


def test_too_few_groups_keep_the_reference():
    for number, expected in ((FEWEST_GROUPS - 1, "reference"), (FEWEST_GROUPS, "better")):
        groups = np.repeat(np.arange(number), 20)
        values = {"better": np.ones(len(groups)), "reference": np.zeros(len(groups))}
        assert selected(values, groups) == expected
    one = np.zeros(50, int)
    found = judge(
        {"better": np.ones(50), "reference": np.zeros(50)}, one, reference="reference", key=KEY
    )
    assert (found.selected, found.num_groups) == ("reference", 1)
    assert found.judged["better"].gain == 1.0 and found.judged["better"].lower <= 0.0


def test_a_measure_that_is_better_when_lower():
    values, groups = family(2, 60, gain=0.7)
    losses = {name: 1.0 - right for name, right in values.items()}
    up, down = (
        judge(given, groups, reference="reference", key=KEY, higher_is_better=higher)
        for given, higher in ((values, True), (losses, False))
    )
    assert up.selected == down.selected == "model 1"
    assert down.judged["model 1"].gain == pytest.approx(up.judged["model 1"].gain)
    assert selected(losses, groups) == "reference"


def test_a_model_expected_to_be_better_is_selected_unless_it_is_behind():
    groups = np.repeat(np.arange(40), 5)
    base = (np.arange(200) % 2).astype(float)

    def moved(threads, by):
        """The reference, right on all examples of some threads, or on none of them."""
        values = base.copy()
        values[np.isin(groups, threads)] = by
        return values

    def choice(expected, **values):
        found = judge(
            {"reference": base, **values}, groups, reference="reference", key=KEY, expected=expected
        )
        return found.selected, found.judged

    # One thread of forty: too little to show a gain, and as little to hold the model back.
    for by in (1.0, 0.0):
        selected, judged = choice("last", last=moved([0, 1], by), half=base.copy())
        assert abs(judged["last"].gain) < 2.0 * judged["last"].stderr
        assert selected == ("last" if by == 1.0 else "reference")
        assert choice(None, last=moved([0, 1], by))[0] == "reference"
    assert choice("last", last=base.copy())[0] == "last"  # as good, and expected to be better
    # Behind by more than `BEHIND` standard errors: whatever is shown to be better, if anything is.
    behind = moved(range(20), 0.0)
    assert choice("last", last=behind)[0] == "reference"
    assert choice("last", last=behind, half=moved(range(30), 1.0))[0] == "half"
    # Ahead, it is selected although another is further ahead.
    assert choice("last", last=moved([0, 1], 1.0), half=moved(range(30), 1.0))[0] == "last"


def test_too_few_groups_hold_no_expected_model_back():
    groups = np.repeat(np.arange(FEWEST_GROUPS - 1), 20)
    values = {"last": np.zeros(len(groups)), "reference": np.ones(len(groups))}
    found = judge(values, groups, reference="reference", key=KEY, expected="last")
    assert found.selected == "last"
