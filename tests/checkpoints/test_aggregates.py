"""The exponential moving average against hand-checked values, and its purity."""

from __future__ import annotations

import numpy as np
import pytest

from fedpriv.checkpoints.aggregates import ema
from fedpriv.checkpoints.store import load_state, save_state


def _scalar(value: float) -> dict[str, np.ndarray]:
    return {"w": np.array([value], np.float32)}


def _run(aggregate, values) -> list[float]:
    state = aggregate.init(_scalar(values[0]))
    out = [float(state["average"]["w"][0])]
    for value in values[1:]:
        average, state = aggregate.next(_scalar(value), state)
        out.append(float(average["w"][0]))
    return out


def test_constant_decay() -> None:
    expected = [0, 0.1, 0.29, 0.561, 0.9049, 1.31441]
    assert _run(ema(0.9), range(6)) == pytest.approx(expected, rel=1e-6)


def test_from_zero_over_its_weights_it_is_the_debiased_one() -> None:
    """The published vector; of a start that is a model no bias is there to be taken off."""
    averages = _run(ema(0.9), [0, *range(6)])[1:]  # the zero in front is the state, no checkpoint
    weights = [1 - 0.9**count for count in range(1, 7)]
    expected = [0, 0.526316, 1.070111, 1.631288, 2.209714, 2.805218]
    found = [average / weight for average, weight in zip(averages, weights, strict=True)]
    assert found == pytest.approx(expected, rel=1e-5)


def test_warmup() -> None:
    # The step from a to b by a share 1 - m, with m_t = (1 + t) / (10 + t) below the decay.
    expected = [0, 0.818182, 1.704545, 2.601399, 3.5005, 4.4002]
    assert _run(ema(0.9999, warmup=True), range(6)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("decay", "meets"), [(0.99, 890), (0.9999, 89_990)])
def test_warmup_ends_where_the_ramp_meets_the_decay(decay: float, meets: int) -> None:
    aggregate = ema(decay, warmup=True)
    for t, keep in [(meets - 1, meets / (meets + 9)), (meets, decay), (meets + 4000, decay)]:
        state = {
            "average": {"w": np.ones(1, np.float64)},
            "count": {"num_updates": np.array(t - 1, np.int64)},
        }
        average, _ = aggregate.next({"w": np.zeros(1)}, state)
        assert average["w"][0] == pytest.approx(keep, rel=1e-12)


def test_no_memory_is_the_newest_params_and_constant_params_stay_exact() -> None:
    assert _run(ema(0.0), [3, 5, 7]) == [3, 5, 7]
    rng = np.random.default_rng(1)
    params = {"w": rng.normal(size=(40, 1000)).astype(np.float32)}
    aggregate = ema(0.9999)
    state = aggregate.init(params)
    for _ in range(5):
        average, state = aggregate.next(params, state)
    assert np.array_equal(average["w"], params["w"])


def test_blocks_equal_the_plain_formula() -> None:
    rng = np.random.default_rng(2)
    # Odd sizes: the last block is short; a transposed view is not contiguous.
    old = {"a": rng.normal(size=(333, 301)).astype(np.float32), "b": np.float32(2.0)}
    new = {"a": rng.normal(size=(301, 333)).astype(np.float32).T, "b": np.float32(4.0)}
    aggregate = ema(0.7)
    average, _ = aggregate.next(new, aggregate.init(old))
    assert np.allclose(average["a"], 0.7 * old["a"] + 0.3 * new["a"], rtol=0, atol=1e-6)
    assert average["a"].dtype == np.float32
    assert float(average["b"]) == pytest.approx(2.6)


def test_nothing_that_was_given_or_returned_changes() -> None:
    first, second = _scalar(1.0), _scalar(2.0)
    aggregate = ema(0.5)
    state0 = aggregate.init(first)
    first["w"][0] = 99
    out1, state1 = aggregate.next(second, state0)
    out2, _ = aggregate.next(second, state1)
    again, _ = aggregate.next(second, state0)
    assert (out1["w"][0], out2["w"][0], again["w"][0]) == (1.5, 1.75, 1.5)
    assert second["w"][0] == 2.0
    assert not np.shares_memory(out1["w"], second["w"])


def test_state_survives_a_file(tmp_path) -> None:
    aggregate = ema(0.9, warmup=True)
    state = aggregate.init(_scalar(0.0))
    _, state = aggregate.next(_scalar(1.0), state)
    flat = {f"{tree}/{name}": t for tree, named in state.items() for name, t in named.items()}
    save_state(tmp_path / "s", flat)
    loaded, _ = load_state(tmp_path / "s", flat)
    back: dict[str, dict[str, np.ndarray]] = {}
    for key, tensor in loaded.items():
        tree, name = key.split("/")
        back.setdefault(tree, {})[name] = tensor
    expected, _ = aggregate.next(_scalar(2.0), state)
    found, _ = aggregate.next(_scalar(2.0), back)
    assert found["w"][0] == expected["w"][0]


@pytest.mark.parametrize("decay", [1.0, 1.5, -0.1, float("nan"), float("inf")])
def test_a_decay_that_is_none_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match=r"ema decay.* must be at least 0 and below 1"):
        ema(decay)


def test_another_models_params_are_refused() -> None:
    aggregate = ema(0.9)
    state = aggregate.init(_scalar(0.0))
    with pytest.raises(ValueError, match="'other'"):
        aggregate.next({"other": np.zeros(1, np.float32)}, state)
    with pytest.raises(ValueError, match=r"\[1\], was given \[2\]"):
        aggregate.next({"w": np.zeros(2, np.float32)}, state)
