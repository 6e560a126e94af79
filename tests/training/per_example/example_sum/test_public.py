"""What public examples are used for: warm starts, ideal preconditioners, looks, batches."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from fedpriv.experiments.build import build
from fedpriv.sums import PartialSum
from fedpriv.training.per_example.example_sum import public_gradient
from fedpriv.training.per_example.linear import LogisticGradients
from tests.training.per_example.example_sum.reviews import (
    BASE,
    DIM,
    KEY,
    NUM,
    SHAPES,
    flat,
    reviews,
    run,
    task,
)


class TestWarmStart:
    def test_it_learns_from_public_examples_and_never_from_private_ones(self):
        class Private(LogisticGradients):
            def gradient(self, params, index, key=None):
                raise AssertionError("a private example was looked at without noise")

        x = sparse.csr_matrix(np.ones((NUM, DIM), np.float32))
        guarded = replace(task(), train=Private(x, np.zeros(NUM, np.int64)))
        for preconditioner in ("none", "public-rmsprop"):
            experiment = BASE.with_options(
                {"warm-start-epochs": 2, "preconditioner": preconditioner}
            )
            found = build(experiment, task=guarded).task.init_params(KEY)
            assert np.abs(found["weight"]).max() > 0

    def test_in_one_batch_it_is_gradient_descent_by_hand(self):
        """Twenty public examples are one batch, whatever their order."""
        warmed = build(BASE.with_options({"warm-start-epochs": 3, "warm-start-rate": 0.7}))
        found, public = warmed.task.init_params(KEY), reviews(20, 1)
        expected = {n: np.zeros(s, np.float32) for n, s in SHAPES.items()}
        for _ in range(3):
            step = public.gradient(expected, np.arange(20))
            expected = {n: a - np.float32(0.7) * step[n] for n, a in expected.items()}
        for name in SHAPES:
            np.testing.assert_array_equal(found[name], expected[name])
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
    params = {n: np.zeros(s, np.float32) for n, s in SHAPES.items()}
    some, everything = public_gradient(public, 20, 5), public_gradient(public, 20, None)
    first = some(params, KEY)["weight"]
    np.testing.assert_array_equal(first, some(params, KEY)["weight"])
    assert not np.array_equal(first, some(params, KEY.fold(1))["weight"])
    mean = np.mean([some(params, KEY.fold(i))["weight"] for i in range(400)], axis=0)
    np.testing.assert_allclose(mean, everything(params, KEY)["weight"], atol=0.02)


@pytest.mark.slow
def test_the_page_of_ones_own_preconditioner(tmp_path):
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
    with pytest.raises(ValueError, match="needs statistics"):
        build(replace(experiment, statistics=None))
    bad = replace(own.LARGEST, scale=lambda v: v * 0)
    with pytest.raises(ValueError, match="not positive"):
        run(replace(experiment, statistics=bad))
