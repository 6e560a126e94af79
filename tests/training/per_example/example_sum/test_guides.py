"""Centralised training is a federated round whose users hold one record: the laws of that."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from fedpriv import tree
from fedpriv.backends import SerialBackend
from fedpriv.experiments.build import build
from fedpriv.mechanisms import Clip
from fedpriv.training.local.module import ArrayExamples, ModuleTrainer
from fedpriv.training.local.schedule import Schedule
from fedpriv.training.per_example.example_sum import CentralSum, example_ids
from fedpriv.training.per_example.linear import LinearRegressionGradients
from tests.training.per_example.example_sum.reviews import BASE, DIM, KEY, NUM, SHAPES, flat, run

GUIDES = {
    "none": {},
    "side-information": {},
    "public-rmsprop": {},
    "public-rmsprop, epoch": {"refresh": "epoch", "public-batch": 5},
    "public-adam": {},
    "public-adagrad": {"regulariser-inside": True},
    "public-adagrad, epoch": {"refresh": "epoch", "public-batch": 5},
    "ideal": {},
    "r-pub": {"public-batch": 7},
    "adam-pub": {"optimizer": "ema-momentum"},
    "mirror-descent": {"public-batch": 5},
    "delayed": {"delay-plain": 2, "delay-preconditioned": 2, "clip-ratio": 3, "rate-ratio": 0.5},
    "past-releases": {"optimizer": "adam"},
}


def with_guide(name, **options):
    return BASE.with_options({"preconditioner": name.partition(",")[0], **GUIDES[name], **options})


@pytest.mark.slow
def test_every_guide_trains_under_either_bound(subtests):
    """One option exchanges clipping for normalisation in any of them."""
    for name in GUIDES:
        for bound in ["clip", "normalise"]:
            with subtests.test(name=name, bound=bound):
                options = {"bound": bound}
                if bound == "normalise":
                    options["normalise-regulariser"] = 0.01
                components, records, states = run(with_guide(name, **options))
                assert len(records) == 6 and np.isfinite(flat(states[-1])).all()
                assert not np.array_equal(flat(states[-1]), flat(states[-2]))
                spent = records[-1].released.epsilon
                if name == "ideal":  # clean gradients: no ε, though there is noise
                    assert not components.plan.is_private and spent is None
                else:
                    assert (
                        spent == components.plan.epsilon(6).value
                        and components.plan.epsilon(6).unit == "example"
                    )
                again = run(with_guide(name, **options))[2]
                np.testing.assert_array_equal(flat(again[-1]), flat(states[-1]))


@pytest.mark.slow
def test_adagrad_once_an_epoch_is_not_rmsprop():
    """Several public batches a look: their sum over all looks, or the mean of the last."""
    sums, means = (
        run(with_guide(f"public-{name}, epoch"))[2][-1] for name in ("adagrad", "rmsprop")
    )
    assert not np.array_equal(flat(sums), flat(means))


@pytest.mark.slow
def test_a_preconditioner_of_ones_is_dp_sgd_bit_for_bit():
    ones = BASE.with_options({"preconditioner": "side-information", "side-information": "ones"})
    np.testing.assert_array_equal(flat(run(ones)[2][-1]), flat(run(BASE)[2][-1]))


def test_one_user_with_one_record_and_one_step_is_an_example():
    """The federated path, each of 200 users with one record, gives the centralised step."""
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(40, DIM)).astype(np.float32), rng.normal(size=40).astype(np.float32)
    module = nn.Linear(DIM, 1, bias=False)

    class Users:
        def examples(self, user_id):
            i = int(user_id)
            return ArrayExamples(x[i : i + 1], y[i : i + 1, None])

        def num_examples(self, user_id):
            return 1

    trainer = ModuleTrainer(
        module=module,
        loss=lambda outputs, targets: 0.5 * (outputs - targets).square().mean(),
        schedule=Schedule(learning_rate=1.0, batch_size=1),
    )
    weight = rng.normal(size=DIM).astype(np.float32)
    bound, cohort = Clip(l2_clip_norm=0.7), tuple(map(str, range(3, 23)))
    federated = SerialBackend(trainer=trainer, data=Users()).partial_sum(
        params={"weight": weight[None]}, bound=bound, cohort=cohort, key=KEY, round_num=1, attempt=1
    )
    central = CentralSum(gradients=LinearRegressionGradients(x, y), num_examples=40)
    found = central.partial_sum(params={"weight": weight}, bound=bound, user_ids=cohort, key=KEY)
    expected = tree.to_dense(federated.real())["weight"].reshape(-1)
    np.testing.assert_allclose(found.real()["weight"], expected, rtol=1e-5, atol=1e-6)


def test_an_empty_batch_releases_its_noise():
    components = build(BASE)
    algorithm, mechanism = components.algorithm, components.plan.live_mechanism
    total = components.trainer.partial_sum(
        params=components.task.init_params(KEY), bound=mechanism.bound, user_ids=(), key=KEY
    )
    assert tree.l2_norm(total.total) == 0.0 and total.num_users == 0
    state = algorithm.init(components.task.init_params(KEY))
    after = algorithm.next(state, mechanism.release(total, mechanism.draw(state.params, KEY)))
    assert after.update_norm > 0


def test_what_is_released_is_the_sum_and_noise_over_the_expected_batch():
    components = build(BASE.with_options({"noise": "none"}))
    params = {n: np.full(s, 0.1, np.float32) for n, s in SHAPES.items()}
    algorithm, mechanism = components.algorithm, components.plan.live_mechanism
    cohort = example_ids(NUM)[:50]
    total = components.trainer.partial_sum(
        params=params, bound=mechanism.bound, user_ids=cohort, key=KEY
    )
    state = algorithm.init({n: a.copy() for n, a in params.items()})
    answer = mechanism.release(total, mechanism.draw(state.params, KEY))
    after = algorithm.next(state, answer)
    for name in SHAPES:  # 50 were drawn, 20 expected: the denominator stays 20
        step = after.params[name] - params[name]
        np.testing.assert_allclose(step, 0.5 * total.total[name] / 20, rtol=1e-5, atol=1e-7)
