"""What public examples are used for: warm starts, ideal preconditioners, looks, batches."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

from fedpriv.experiments.build import build
from fedpriv.mechanisms.preconditioners import Statistics
from fedpriv.sums import PartialSum
from fedpriv.training.per_example.example_sum import public_gradient
from tests.harness.toys_of_training import assert_same, zeros
from tests.training.per_example.example_sum.reviews import BASE, KEY, SHAPES, flat, reviews, run


def test_a_warm_start_in_one_batch_is_gradient_descent_by_hand():
    """Twenty public examples are one batch, whatever their order."""
    warmed = build(BASE.with_options({"warm-start-epochs": 3, "warm-start-rate": 0.7}))
    expected, public = zeros(**SHAPES), reviews(20, 1)
    for _ in range(3):
        step = public.gradient(expected, np.arange(20))
        expected = {n: a - np.float32(0.7) * step[n] for n, a in expected.items()}
    assert_same(warmed.task.init_params(KEY), expected)
    assert flat(run(BASE.with_options({"warm-start-epochs": 1}))[2][-1]).any()


class TestIdeal:
    """Clean gradients precondition: no guarantee, and the noise is the private twin's."""

    @pytest.mark.parametrize("micro_batch", [1, 4])
    def test_its_noise_is_bit_for_bit_that_of_a_run_that_promises_it(self, micro_batch):
        options = {"micro-batch": micro_batch}
        planned = build(BASE.with_options(options)).plan
        plan = build(BASE.with_options({**options, "preconditioner": "ideal"})).plan
        assert planned.is_private and not plan.is_private
        twin, ideal = planned.live_mechanism, plan.live_mechanism
        assert ideal.privatizer.stddev == twin.stddev == 0.15 * min(micro_batch, 2)
        params = {"weight": np.zeros((500, 200), np.float32)}
        nothing = PartialSum(total=params, num_users=0)
        found, expected = (one.draw(params, KEY).take(nothing, one) for one in (ideal, twin))
        found = found["weight"]
        np.testing.assert_array_equal(found, expected["weight"])
        # 1e5 normals: their deviation is within 1.5 % in all but 2e-11 of keys.
        assert found.std() == pytest.approx(0.15 * min(micro_batch, 2), rel=0.015)


def test_public_batches_are_drawn_from_the_key_and_may_be_everything():
    public = reviews(20, 1)
    params = zeros(**SHAPES)
    some, everything = public_gradient(public, 20, 5), public_gradient(public, 20, None)
    first = some(params, KEY)["weight"]
    np.testing.assert_array_equal(first, some(params, KEY)["weight"])
    assert not np.array_equal(first, some(params, KEY.fold(1))["weight"])
    mean = np.mean([some(params, KEY.fold(i))["weight"] for i in range(400)], axis=0)
    np.testing.assert_allclose(mean, everything(params, KEY)["weight"], atol=0.02)


@pytest.mark.slow
def test_the_page_of_ones_own_preconditioner(tmp_path, monkeypatch):
    """docs/your-own.md: rules of somebody's own in one file; they change the run and no ε."""
    page = Path(__file__).parents[4] / "docs" / "your-own.md"
    *_, code = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    (tmp_path / "own.py").write_text(code, "utf-8")
    spec = importlib.util.spec_from_file_location("own_statistics", tmp_path / "own.py")
    own = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(own)
    experiment = own.experiment()
    _, records, states = run(experiment)
    plain = run(experiment.with_options({"preconditioner": "none"}))
    assert records[-1].released.epsilon <= 2.0 == plain[0].plan.target_epsilon
    assert records[-1].released.measured["accuracy"] > 0.6
    assert not np.allclose(flat(states[-1]), flat(plain[2][-1]))
    nothing = Statistics(second=lambda v, g: v, scale=lambda v: v * 0)
    monkeypatch.setattr(own.Largest, "statistics", lambda self: nothing)
    with pytest.raises(ValueError):
        run(experiment)
