"""Aggregates of checkpoints: exactness, purity, and size; values are in `tests/oracles`."""

import numpy as np
import pytest

from fedpriv.checkpoints.aggregates import (
    Average,
    MeanOutputs,
    OfLast,
    Uniform,
    answers,
    mean_probabilities,
    packed,
    unpacked,
    votes,
)
from tests.harness.refusals import refuses


def _scalar(value: float) -> dict[str, np.ndarray]:
    return {"w": np.array([value], np.float32)}


def _run(aggregate, values) -> list[float]:
    state = aggregate.init(_scalar(values[0]))
    out = [float(state["average"]["w"][0])]
    for value in values[1:]:
        average, state = aggregate.next(_scalar(value), state)
        out.append(float(average["w"][0]))
    return out


@pytest.mark.parametrize(("decay", "meets"), [(0.99, 890), (0.9999, 89_990)])
def test_warmup_ends_where_the_ramp_meets_the_decay(decay: float, meets: int) -> None:
    aggregate = Average(ema_decay=decay, ema_warmup=True)
    for t, keep in [(meets - 1, meets / (meets + 9)), (meets, decay), (meets + 4000, decay)]:
        state = {
            "average": {"w": np.ones(1, np.float64)},
            "count": {"num_updates": np.array(t - 1, np.int64)},
        }
        average, _ = aggregate.next({"w": np.zeros(1)}, state)
        assert average["w"][0] == pytest.approx(keep, rel=1e-12)


@pytest.mark.parametrize("aggregate", [Average(ema_decay=0.9999), Uniform(k=7)], ids=["ema", "upa"])
def test_constant_params_stay_exact(aggregate) -> None:
    params = {"w": np.random.default_rng(1).normal(size=40_000).astype(np.float32)}
    state = aggregate.init(params)
    for _ in range(30):
        average, state = aggregate.next(params, state)
        assert np.array_equal(average["w"], params["w"])


def test_no_memory_is_the_newest_params() -> None:
    assert _run(Average(ema_decay=0.0), [3, 5, 7]) == [3, 5, 7]


def test_blocks_equal_the_plain_formula() -> None:
    rng = np.random.default_rng(2)
    # Odd sizes: the last block is short; a transposed view is not contiguous.
    old = {"a": rng.normal(size=(333, 301)).astype(np.float32), "b": np.float32(2.0)}
    new = {"a": rng.normal(size=(301, 333)).astype(np.float32).T, "b": np.float32(4.0)}
    aggregate = Average(ema_decay=0.7)
    average, _ = aggregate.next(new, aggregate.init(old))
    assert np.allclose(average["a"], 0.7 * old["a"] + 0.3 * new["a"], rtol=0, atol=1e-6)
    assert average["a"].dtype == np.float32
    assert float(average["b"]) == pytest.approx(2.6)


AGGREGATES = {
    "ema": Average(ema_decay=0.5, ema_warmup=True),
    "upa": Uniform(k=3),
    "median": OfLast(
        k=3, function=lambda past: {"w": np.median([one["w"] for one in past], axis=0)}
    ),
}
every_aggregate = pytest.mark.parametrize("aggregate", AGGREGATES.values(), ids=AGGREGATES)


@every_aggregate
def test_nothing_that_was_given_or_returned_changes(aggregate) -> None:
    first, second = _scalar(1.0), _scalar(2.0)
    state0 = aggregate.init(first)
    first["w"][0] = 99
    out1, state1 = aggregate.next(second, state0)
    second["w"][0] = 98
    before = float(out1["w"][0])
    aggregate.next(_scalar(4.0), state1)
    again, _ = aggregate.next(_scalar(2.0), state0)
    assert out1["w"][0] == again["w"][0] == before
    assert not np.shares_memory(out1["w"], second["w"])


@every_aggregate
def test_another_models_params_are_refused(aggregate) -> None:
    state = aggregate.init(_scalar(0.0))
    with refuses(ValueError, "'w'", "'other'"):
        aggregate.next({"other": np.zeros(1, np.float32)}, state)
    with refuses(ValueError, "'w'", "[1]", "[2]"):
        aggregate.next({"w": np.zeros(2, np.float32)}, state)


@pytest.mark.parametrize("k", [1, 2, 5, 9])
def test_it_is_the_plain_mean_at_every_step(k: int) -> None:
    rng = np.random.default_rng(k)
    trees = [
        {
            "a": rng.normal(size=(133, 301)).astype(np.float32),  # more than one block
            "b": np.float32(rng.normal()).reshape(()),
        }
        for _ in range(13)
    ]
    aggregate = Uniform(k=k)
    state = aggregate.init(trees[0])
    for t in range(1, len(trees)):
        average, state = aggregate.next(trees[t], state)
        seen = trees[max(0, t - k + 1) : t + 1]
        for name in ("a", "b"):
            expected = np.mean([np.asarray(one[name], np.float64) for one in seen], axis=0)
            assert np.array_equal(average[name], expected.astype(np.float32))
            assert average[name].dtype == np.float32


def test_no_error_builds_up_and_what_left_the_window_is_gone() -> None:
    """A running sum would carry the rounding of 2^30 for ever, and NaN too."""
    rough = [1e9, float("nan"), 1.0, 2.0, 3.0]
    found = _run(Uniform(k=3), rough * 3)
    assert found[4] == 2.0 and found[9] == 2.0 and np.isnan(found[2])


@pytest.mark.parametrize("k", [1, 3, 8])
def test_its_memory_is_k_models_and_that_of_an_average_one(k: int) -> None:
    """By the size of the state, which does not grow with rounds."""
    params = {"w": np.ones((50, 20), np.float32), "b": np.ones(7, np.float32)}
    one = sum(array.nbytes for array in params.values())
    counter = np.int64(0).nbytes
    for make, models in ((Uniform(k=k), k + 1), (MeanOutputs(k=k), k), (Average(ema_decay=0.9), 1)):
        state = make.init(params)
        for _ in range(3 * k + 1):
            size = sum(array.nbytes for tree in state.values() for array in tree.values())
            assert size == models * one + counter
            _, state = make.next(params, state)


def test_any_function_of_the_last_checkpoints() -> None:
    """A median, which is no running average; the first params are before the first round."""
    seen: list[list[float]] = []

    def median(past):
        seen.append([float(one["w"][0]) for one in past])
        return {"w": np.median([one["w"] for one in past], axis=0)}  # float64: made float32

    assert _run(OfLast(k=3, function=median), [0, 9, 2, 7, 1]) == [0, 4.5, 2, 7, 2]
    assert seen == [[0, 9], [0, 9, 2], [9, 2, 7], [2, 7, 1]]


def test_a_function_cannot_write_into_the_past() -> None:
    def greedy(past):
        past[0]["w"][0] = 5
        return past[-1]

    aggregate = OfLast(k=2, function=greedy)
    with pytest.raises(ValueError):
        aggregate.next(_scalar(1.0), aggregate.init(_scalar(0.0)))


@pytest.mark.parametrize(
    ("returned", "names"),
    [({"v": np.zeros(1)}, ("'v'", "'w'")), ({"w": np.zeros(3)}, ("'w'", "[3]", "[1]"))],
)
def test_a_function_that_returns_another_model_is_refused(returned, names) -> None:
    aggregate = OfLast(k=2, function=lambda past: returned)
    with refuses(ValueError, *names):
        aggregate.next(_scalar(1.0), aggregate.init(_scalar(0.0)))


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        *((Average, "ema_decay", value) for value in (1.0, 1.5, -0.1, float("nan"), float("inf"))),
        *((p, "k", v) for p in (Uniform, MeanOutputs) for v in (0, -1, 2.0, True, None)),
    ],
)
def test_a_number_that_is_none_is_refused(part, name, value) -> None:
    with refuses(ValueError, value):
        part(**{name: value})


def test_models_are_packed_and_unpacked() -> None:
    trees = [{"kernel": np.full((2, 3), i, np.float32), "a.b": np.ones(i + 1)} for i in range(12)]
    rule, found = unpacked(packed("omv", trees)) or ("", [])
    assert rule == "omv" and len(found) == 12
    for tree, own in zip(trees, found, strict=True):  # in order, also from the tenth on
        assert set(tree) == set(own) and all(np.array_equal(tree[n], own[n]) for n in tree)


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: answers("mean", [np.ones((1, 1))]), ("'mean'", "opa", "omv")),
        (lambda: answers("opa", []), ("[]",)),
        (lambda: votes([np.zeros((2, 3)), np.zeros((3, 3))]), ("[[2, 3], [3, 3]]",)),
        (lambda: mean_probabilities([np.zeros(3)]), ("[[3]]",)),
        (lambda: packed("opa", []), (0, "'opa'")),
    ],
)
def test_what_cannot_be_aggregated_is_refused(call, names) -> None:
    with refuses(ValueError, *names):
        call()
