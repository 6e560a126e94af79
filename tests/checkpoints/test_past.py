"""Aggregates of the last k checkpoints: vectors, exactness, purity, and the size of their state."""

from __future__ import annotations

import numpy as np
import pytest

from fedpriv.checkpoints.aggregates import ema, keeping, last_checkpoints, of_last, upa
from fedpriv.checkpoints.store import load_state, save_state


def scalar(value: float) -> dict[str, np.ndarray]:
    return {"w": np.array([value], np.float32)}


def run(aggregate, values) -> list[float]:
    state = aggregate.init(scalar(values[0]))
    out = [float(state["average"]["w"][0])]
    for value in values[1:]:
        average, state = aggregate.next(scalar(value), state)
        assert average["w"] is state["average"]["w"]
        out.append(float(average["w"][0]))
    return out


def nbytes(state) -> int:
    return sum(array.nbytes for tree in state.values() for array in tree.values())


def test_one_checkpoint_is_the_newest() -> None:
    assert run(upa(1), [3, 5, 7]) == [3, 5, 7]


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
    aggregate = upa(k)
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
    found = run(upa(3), rough * 3)
    assert found[4] == 2.0 and found[9] == 2.0 and np.isnan(found[2])
    params = {"w": np.random.default_rng(1).normal(size=1000).astype(np.float32)}
    aggregate = upa(7)
    state = aggregate.init(params)
    for _ in range(30):
        average, state = aggregate.next(params, state)
        assert np.array_equal(average["w"], params["w"])


@pytest.mark.parametrize("k", [1, 3, 8])
def test_its_memory_is_k_models_and_that_of_an_average_one(k: int) -> None:
    """By the size of the state, which does not grow with rounds."""
    params = {"w": np.ones((50, 20), np.float32), "b": np.ones(7, np.float32)}
    one = sum(array.nbytes for array in params.values())
    counter = np.int64(0).nbytes
    for make, models in ((upa(k), k + 1), (keeping(k), k), (ema(0.9), 1)):
        state = make.init(params)
        sizes = [nbytes(state)]
        for _ in range(3 * k):
            _, state = make.next(params, state)
            sizes.append(nbytes(state))
        assert set(sizes) == {models * one + counter}


def test_nothing_that_was_given_or_returned_changes() -> None:
    first, second = scalar(1.0), scalar(2.0)
    aggregate = upa(2)
    state0 = aggregate.init(first)
    first["w"][0] = 99
    out1, state1 = aggregate.next(second, state0)
    second["w"][0] = 98
    out2, _ = aggregate.next(scalar(4.0), state1)
    again, _ = aggregate.next(scalar(2.0), state0)
    assert (out1["w"][0], out2["w"][0], again["w"][0]) == (1.5, 3.0, 1.5)


def test_state_survives_a_file(tmp_path) -> None:
    aggregate = upa(3)
    state = aggregate.init(scalar(0.0))
    for value in (1.0, 2.0, 3.0, 4.0):
        _, state = aggregate.next(scalar(value), state)
    flat = {f"{tree}/{name}": t for tree, named in state.items() for name, t in named.items()}
    first = aggregate.init(scalar(0.0))
    form = {f"{tree}/{name}": t for tree, named in first.items() for name, t in named.items()}
    save_state(tmp_path / "s", flat)
    loaded, _ = load_state(tmp_path / "s", form)  # the first state has the form of every other
    back: dict[str, dict[str, np.ndarray]] = {}
    for key, tensor in loaded.items():
        tree, name = key.split("/")
        back.setdefault(tree, {})[name] = tensor
    assert float(aggregate.next(scalar(5.0), back)[0]["w"][0]) == 4.0
    assert [float(one["w"][0]) for one in last_checkpoints(back)] == [2.0, 3.0, 4.0]


def test_any_function_of_the_last_checkpoints() -> None:
    """A median, which is no running average; the first params are before the first round."""
    seen: list[list[float]] = []

    def median(past):
        seen.append([float(one["w"][0]) for one in past])
        return {"w": np.median([one["w"] for one in past], axis=0)}  # float64: made float32

    assert run(of_last(3, median), [0, 9, 2, 7, 1]) == [0, 4.5, 2, 7, 2]
    assert seen == [[0, 9], [0, 9, 2], [9, 2, 7], [2, 7, 1]]


def test_a_function_cannot_write_into_the_past() -> None:
    def greedy(past):
        past[0]["w"][0] = 5
        return past[-1]

    aggregate = of_last(2, greedy)
    with pytest.raises(ValueError, match="read-only"):
        aggregate.next(scalar(1.0), aggregate.init(scalar(0.0)))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda past: {"v": past[-1]["w"]}, r"returned tensors \['v'\]; return those of"),
        (lambda past: {"w": np.zeros(3)}, r"returned 'w' as \[3\]; its checkpoints have \[1\]"),
    ],
)
def test_a_function_that_returns_another_model_is_refused(function, message) -> None:
    aggregate = of_last(2, function)
    with pytest.raises(ValueError, match=message):
        aggregate.next(scalar(1.0), aggregate.init(scalar(0.0)))


@pytest.mark.parametrize("k", [0, -1, 2.0, True, None])
@pytest.mark.parametrize("make", [upa, keeping])
def test_a_number_of_checkpoints_that_is_none_is_refused(make, k) -> None:
    with pytest.raises(ValueError, match=r"last .* checkpoints; give a whole number from 1"):
        make(k)


def test_another_models_params_are_refused() -> None:
    aggregate = upa(2)
    state = aggregate.init(scalar(0.0))
    with pytest.raises(ValueError, match="'other'"):
        aggregate.next({"other": np.zeros(1, np.float32)}, state)
    with pytest.raises(ValueError, match=r"\[1\], was given \[2\]"):
        aggregate.next({"w": np.zeros(2, np.float32)}, state)
