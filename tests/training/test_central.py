"""Centralised training is a federated round whose users hold one record: the laws of that."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from fedpriv import tree
from fedpriv.central_experiment import CentralExperiment, build_central
from fedpriv.engine import SerialCarrier
from fedpriv.mechanisms import Clip, Rounded, SideInformation
from fedpriv.rng import Key
from fedpriv.run import rounds
from fedpriv.training.central import CentralSum, example_ids, public_gradient
from fedpriv.training.central_task import CentralTask, zeros
from fedpriv.training.linear_gradients import LinearRegressionGradients, LogisticGradients
from fedpriv.training.local import Schedule
from fedpriv.training.module import ArrayExamples, ModuleTrainer

NUM, DIM, KEY = 200, 12, Key.simulation(4)
SHAPES = {"weight": (DIM,), "bias": (1,)}
SIDE = np.linspace(0.2, 5.0, DIM, dtype=np.float32)


def reviews(num, seed):
    rng = np.random.default_rng(seed)
    x = (rng.random((num, DIM)) < 0.4) * rng.uniform(0.5, 2.0, (num, DIM))
    y = (x[:, 0] + 0.3 * rng.normal(size=num) > x[:, 1]).astype(np.int64)
    return LogisticGradients(sparse.csr_matrix(x.astype(np.float32)), y)


def task(experiment=None):
    return CentralTask(
        name="made up",
        train=reviews(NUM, 0),
        num_train=NUM,
        init=zeros(SHAPES),
        measure=lambda params: None,
        public=reviews(20, 1),
        num_public=20,
        side={
            "frequency": lambda: SideInformation(
                multiplier={"weight": SIDE}, source="public", description="counts"
            ),
            "ones": lambda: SideInformation(
                multiplier={"weight": np.ones(DIM, np.float32)}, source="public", description="1"
            ),
        },
        synthetic=True,
    )


BASE = CentralExperiment(
    name="central",
    description="A test.",
    task=task,
    batch_size=20,
    steps=6,
    noise_multiplier=0.5,
    l2_clip_norm=0.3,
    learning_rate=0.5,
    delta=1e-3,
)
GUIDES = {
    "none": {},
    "side-information": {},
    "public-rmsprop": {},
    "public-rmsprop, epoch": {"guide": "public-rmsprop", "refresh": "epoch", "public-batch": 5},
    "public-adam": {},
    "public-adagrad": {"regulariser-inside": True},
    "ideal": {},
    "r-pub": {"public-batch": 7},
    "adam-pub": {"optimizer": "ema-momentum"},
    "mirror-descent": {"public-batch": 5},
    "delayed": {"delay-plain": 2, "delay-preconditioned": 2, "clip-ratio": 3, "rate-ratio": 0.5},
    "past-releases": {"optimizer": "adam"},
}


def run(experiment):
    parts = build_central(experiment)
    carrier = SerialCarrier(trainer=parts.trainer, measure=parts.task.evaluate)
    records, states = zip(*rounds(parts, carrier, KEY), strict=True)
    return parts, records, states


def with_guide(name, **options):
    return BASE.with_options({"guide": name.partition(",")[0], **GUIDES[name], **options})


def flat(state):
    return np.concatenate([state.params[name].reshape(-1) for name in sorted(state.params)])


@pytest.mark.parametrize("name", GUIDES)
@pytest.mark.parametrize("bound", ["clip", "normalise"])
def test_every_guide_trains_under_either_bound(name, bound):
    """One option exchanges clipping for normalisation in any of them."""
    options = {"bound": bound, "normalise-regulariser": 0.01 if bound == "normalise" else 0.0}
    parts, records, states = run(with_guide(name, **options))
    assert len(records) == 6 and np.isfinite(flat(states[-1])).all()
    assert not np.array_equal(flat(states[-1]), flat(states[-2]))
    spent = records[-1].released.epsilon
    if name == "ideal":  # clean gradients: no ε, though there is noise
        assert not parts.plan.is_private and spent is None
    else:
        assert spent == parts.plan.epsilon(6).value and parts.plan.epsilon(6).unit == "example"
    again = run(with_guide(name, **options))[2]
    np.testing.assert_array_equal(flat(again[-1]), flat(states[-1]))


@pytest.mark.parametrize("name", [name for name in GUIDES if name != "none"])
def test_every_guide_changes_the_run(name):
    plain = run(BASE.with_options({"optimizer": GUIDES[name].get("optimizer", "sgd")}))[2]
    assert not np.allclose(flat(run(with_guide(name))[2][-1]), flat(plain[-1]), rtol=1e-4)


def test_a_preconditioner_of_ones_is_dp_sgd_bit_for_bit():
    ones = BASE.with_options({"guide": "side-information", "side-information": "ones"})
    np.testing.assert_array_equal(flat(run(ones)[2][-1]), flat(run(BASE)[2][-1]))


def test_one_user_with_one_record_and_one_step_is_an_example():
    """The federated path, each of 200 users with one record, gives the centralised step."""
    from torch import nn

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
    federated = SerialCarrier(trainer=trainer, data=Users()).partial_sum(
        params={"weight": weight[None]}, bound=bound, cohort=cohort, key=KEY, round_num=1, attempt=1
    )
    central = CentralSum(gradients=LinearRegressionGradients(x, y), num_examples=40)
    found = central.partial_sum(params={"weight": weight}, bound=bound, cohort=cohort, key=KEY)
    expected = tree.to_dense(federated.real())["weight"].reshape(-1)
    np.testing.assert_allclose(found.real()["weight"], expected, rtol=1e-5, atol=1e-6)


def test_an_empty_batch_releases_its_noise():
    parts = build_central(BASE)
    total = parts.trainer.partial_sum(
        params=parts.task.init_params(KEY), bound=parts.bound, cohort=(), key=KEY
    )
    assert tree.l2_norm(total.total) == 0.0 and total.num_users == 0
    state = parts.round.init(parts.task.init_params(KEY))
    after = parts.round.next(state, total, parts.round.noise(state.params, KEY))
    assert after.update_norm > 0


def test_what_is_released_is_the_sum_and_noise_over_the_expected_batch():
    parts = build_central(BASE.with_options({"noise": "none"}))
    params = {n: np.full(s, 0.1, np.float32) for n, s in SHAPES.items()}
    cohort = example_ids(NUM)[:50]
    total = parts.trainer.partial_sum(params=params, bound=parts.bound, cohort=cohort, key=KEY)
    state = parts.round.init({n: a.copy() for n, a in params.items()})
    noise = parts.round.noise(state.params, KEY)
    after = parts.round.next(state, total, noise)
    for name in SHAPES:  # 50 were drawn, 20 expected: the denominator stays 20
        step = after.params[name] - params[name]
        np.testing.assert_allclose(step, 0.5 * total.total[name] / 20, rtol=1e-5, atol=1e-7)


class TestMicroBatches:
    """Groups of examples bounded by their mean: one example moves the sum by up to 2C."""

    EXPERIMENT = BASE.with_options({"micro-batch": 4})

    def total(self, examples, trainer, round_num=1):
        done = trainer.partial_sum(
            params={n: np.zeros(s, np.float32) for n, s in SHAPES.items()},
            bound=Clip(l2_clip_norm=0.01),  # everything is clipped
            cohort=[str(i) for i in examples],
            key=KEY.fold(round_num),
        )
        return np.concatenate([done.total[n] for n in sorted(SHAPES)])

    def test_an_example_moves_the_sum_by_twice_the_bound_and_no_more(self):
        parts = build_central(self.EXPERIMENT)
        assert parts.trainer.num_groups == 5
        moved = []
        for round_num in range(20):
            drawn = list(range(round_num, 60))
            whole = self.total(drawn, parts.trainer, round_num)
            for left_out in drawn[::7]:
                rest = self.total([i for i in drawn if i != left_out], parts.trainer, round_num)
                moved.append(np.linalg.norm(whole - rest))
        assert max(moved) <= 2 * 0.01 * (1 + 1e-6)

    def test_more_than_the_bound_is_reached(self):
        """Two examples of one group that point apart: leaving one out turns the group around."""
        x = np.array([[3.0], [-2.0]], np.float32)
        gradients = LinearRegressionGradients(x, np.array([-1.0, -1.0]))
        trainer = CentralSum(gradients=gradients, num_examples=2, num_groups=1)
        sums = [
            trainer.partial_sum(
                params={"weight": np.zeros(1, np.float32)},
                bound=Clip(l2_clip_norm=0.01),
                cohort=cohort,
                key=KEY,
            ).total["weight"][0]
            for cohort in (("0", "1"), ("1",))
        ]
        assert abs(sums[0] - sums[1]) == pytest.approx(0.02, rel=1e-5)

    def test_the_plan_pays_for_it(self):
        parts, alone = build_central(self.EXPERIMENT), build_central(BASE)
        assert parts.plan.sensitivity == 2 * alone.plan.sensitivity == 0.6
        assert parts.plan.stddev == 2 * alone.plan.stddev
        assert parts.plan.epsilon(6) == alone.plan.epsilon(6)
        assert parts.plan.denominator == 5

    def test_the_papers_noise_is_half_as_much_of_that(self):
        """IMDB: σ = 1 to the clip norm is 0.5 to the sensitivity; the authors counted 1.51."""
        imdb = replace(
            BASE, batch_size=64, steps=12_500, noise_multiplier=0.5, delta=4e-5, micro_batch=4
        )
        big = replace(task(), num_train=25_000)
        spent = build_central(imdb, big).plan.epsilon(12_500)
        assert spent.rdp == pytest.approx(12.7, abs=0.05)
        counted = build_central(replace(imdb, noise_multiplier=1.0, micro_batch=1), big)
        assert counted.plan.epsilon(12_500).rdp == pytest.approx(1.512, abs=1e-3)


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"steps": "none"}, "exactly one"),
            ({"epochs": 2.0}, "exactly one"),
            ({"micro-batch": 21}, "above the expected batch"),
            ({"micro-batch": 2, "relation": "replace-one", "sampling": "fixed"}, "micro_batch 2"),
            ({"guide": "public-adam", "public-batch": 21}, "public batch of 21"),
            ({"guide": "side-information", "side-information": "odd"}, "'odd' is not known"),
            ({"guide": "ideal", "target-epsilon": 2.0}, "no ε to calibrate"),
            ({"guide": "delayed", "delay-plain": 0}, "plain 0"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, options, said):
        with pytest.raises(ValueError, match=said):
            build_central(BASE.with_options(options))

    def test_guides_that_need_public_examples_say_so(self):
        bare = replace(task(), public=None, num_public=0)
        with pytest.raises(ValueError, match="no public examples"):
            build_central(BASE.with_options({"guide": "r-pub"}), bare)

    def test_no_grid(self):
        parts = build_central(BASE)
        with pytest.raises(ValueError, match="exact-sum false"):
            parts.trainer.partial_sum(
                params=parts.task.init_params(KEY),
                bound=Rounded(bound=Clip(l2_clip_norm=1.0)),
                cohort=("1",),
                key=KEY,
            )


def test_public_batches_are_drawn_from_the_key_and_may_be_everything():
    public = reviews(20, 1)
    params = {n: np.zeros(s, np.float32) for n, s in SHAPES.items()}
    some, everything = public_gradient(public, 20, 5), public_gradient(public, 20, None)
    first = some(params, KEY)["weight"]
    np.testing.assert_array_equal(first, some(params, KEY)["weight"])
    assert not np.array_equal(first, some(params, KEY.fold(1))["weight"])
    mean = np.mean([some(params, KEY.fold(i))["weight"] for i in range(400)], axis=0)
    np.testing.assert_allclose(mean, everything(params, KEY)["weight"], atol=0.02)


def test_the_page_of_ones_own_preconditioner(tmp_path):
    """docs/your-own.md: rules of somebody's own in one file; they change the run and no ε."""
    page = Path(__file__).parents[2] / "docs" / "your-own.md"
    _, code = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    (tmp_path / "own.py").write_text(code, "utf-8")
    spec = importlib.util.spec_from_file_location("own_statistics", tmp_path / "own.py")
    own = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(own)
    experiment = own.experiment()
    _, records, states = run(experiment)
    plain = run(experiment.with_options({"guide": "none"}))
    assert records[-1].released.epsilon <= 2.0 == plain[0].plan.target_epsilon
    assert records[-1].released.accuracy_public > 0.6
    assert not np.allclose(flat(states[-1]), flat(plain[2][-1]))
    with pytest.raises(ValueError, match="needs statistics"):
        build_central(replace(experiment, statistics=None))
    bad = replace(own.LARGEST, scale=lambda v: v * 0)
    with pytest.raises(ValueError, match="not positive"):
        run(replace(experiment, statistics=bad))
