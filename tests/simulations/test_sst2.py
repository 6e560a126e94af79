"""RoBERTa on SST-2: the paper's plan, a tiny model that learns in private, and runs found again."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv.experiments.build import build
from fedpriv.mechanisms import Clip
from fedpriv.privacy.sampling import PoissonSampler
from fedpriv.rng import Key
from fedpriv.tasks.central import CentralTask, zeros
from fedpriv.training.local.module import module_params
from fedpriv.training.per_example.module import ModuleGradients
from simulations.dpnsgd import grid as grids
from simulations.dpnsgd import sst2
from simulations.dpnsgd.figure4 import METHODS, experiment, grid_of, reproduce
from simulations.dpnsgd.sst2 import by_length, synthetic_sentences, write_tiny_weights
from simulations.reproduction.runs import Run, perform
from simulations.reviews.bag_of_words import Texts
from simulations.reviews.roberta import load_roberta, tokens
from simulations.reviews.sst2 import TextSplits
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import example_sum

if find_spec("transformers") is None:
    pytest.skip("the extra `pretrained` is not installed", allow_module_level=True)

#: A good and a middling size of each method's grid.
CHOSEN = {
    "dp-sgd": (3.2, 0.4),
    "dp-nsgd": (3.2, 0.001),
    "dp-adam": (0.01, 0.4),
    "dp-nadam": (0.01, 0.001),
}


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
    made = sst2.reduced_setup(tmp_path_factory.mktemp("tiny"))
    yield made
    for cached in (sst2.task, sst2._encoded, sst2._module, sst2.digest):
        cached.cache_clear()


def of_the_real_size(weights, epsilon):
    """The plan on 67,349 examples, without the examples."""
    train = Texts(texts=("",) * 67_349, labels=np.zeros(67_349, np.int64))
    data = TextSplits(name="as large", train=train, test=train, provenance={})
    chosen = sst2.Setup(weights=weights, data=data, epsilon=epsilon)
    stand_in = CentralTask(
        name="as large",
        train=None,  # type: ignore[arg-type]
        num_train=67_349,
        init=zeros({"weight": (2,)}),
        measure=lambda params: None,
    )
    return build(experiment(chosen, "dp-nsgd", 0.1, 0.1, "test"), task=stand_in).plan


class TestPlan:
    @pytest.mark.slow
    @pytest.mark.parametrize("epsilon", [8.0, 2.0, pytest.param(4.0, marks=pytest.mark.slow)])
    def test_is_the_papers(self, setup, epsilon):
        plan = of_the_real_size(setup.weights, epsilon)
        assert plan.num_rounds == 680 and plan.unit == "example"
        assert plan.live_mechanism.sampler == PoissonSampler(
            num_users=67_349, expected_cohort_size=1000
        )
        spent = plan.epsilon(680)
        assert spent.delta == 1e-5
        assert spent.rdp == pytest.approx(epsilon, rel=0.01)
        assert spent.value < spent.rdp

    @pytest.mark.slow
    def test_bound_is_one_whatever_r_is_and_c_for_clipping(self, setup):
        for method, size, expected in (("dp-nsgd", 0.01, 1.0), ("dp-sgd", 0.4, 0.4)):
            plan = build(experiment(setup, method, 1.0, size, "test")).plan
            assert plan.live_mechanism.sensitivity == expected


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_beats_chance_in_private(setup, method):
    """50 steps at ε = 8, δ = 1e-5, on 1,000 sentences the model has not seen.

    A model that guesses is right on more than 62 % of them once in 10^14 runs (binomial; the
    labels are drawn evenly), in one of four methods four times that. Seen: 0.76 to 0.95.
    """
    rate, size = CHOSEN[method]
    made = grid_of(setup, method).run(rate, size, "test", 0)
    row = perform(made)
    assert row["synthetic"] and row["steps"] == 50 and row["unit"] == "example"
    assert row["epsilon"] <= 8.0 and row["delta"] == 1e-5
    assert row["accuracy"] > 0.62


@pytest.mark.slow
def test_embeddings_stay_where_they_were(setup):
    made = experiment(setup, "dp-nsgd", 3.2, 0.001, "test").with_options({"steps": 2})
    perform(Run(experiment=made, split="test", seed=0, reduced=True))
    before, after = load_roberta(setup.weights), sst2._module(setup)
    moved = {
        name
        for (name, a), b in zip(before.named_parameters(), after.parameters(), strict=True)
        if not np.array_equal(a.detach().numpy(), b.detach().numpy())
    }
    frozen = {n for n, _ in before.named_parameters() if "embeddings" in n}
    assert len(frozen) == 5 and not moved & frozen
    assert moved == set(module_params(before))


@pytest.mark.slow
def test_every_run_starts_from_the_files_weights_and_a_head_of_its_key(setup):
    made = sst2.task(setup, "test")
    one, same, other = (made.init_params(Key.simulation(s)) for s in (0, 0, 1))
    file = module_params(load_roberta(setup.weights))
    for name, array in one.items():
        np.testing.assert_array_equal(array, same[name])
        is_head = name.startswith("classifier.") and array.ndim > 1
        assert np.array_equal(array, other[name]) != is_head
        if not name.startswith("classifier."):
            np.testing.assert_array_equal(array, file[name])


def test_validation_is_a_tenth_of_the_training_set(setup):
    kept = sst2.rows(setup, "validation")
    held = sst2.rows(setup, "validation", seen=True)
    assert len(held) == 200
    np.testing.assert_array_equal(np.sort(np.r_[kept, held]), np.arange(2_000))
    made = sst2.task(setup, "validation")
    params = made.init_params(Key.simulation(0))
    assert made.num_train == 1_800
    assert made.evaluate(params, public=True).num_examples == 200
    assert sst2.task(setup, "test").evaluate(params, public=True).num_examples == 1_000


@pytest.mark.slow
def test_metrics_are_those_of_whole_rows(setup):
    made = sst2.task(setup, "test")
    params = made.init_params(Key.simulation(5))
    found = made.evaluate(params, public=True)
    x, y = sst2._encoded(setup, "test"), setup.data.test.labels
    logits = sst2._module(setup).eval()(torch.from_numpy(x)).detach()
    assert found.get("accuracy") == float((logits.argmax(1).numpy() == y).mean())
    expected = float(nn.functional.cross_entropy(logits, torch.from_numpy(y)))
    assert found.get("loss") == pytest.approx(expected, rel=1e-5)


class TestByLength:
    def rows(self, setup):
        texts = [" ".join(["plainaa"] * n + ["gooda"]) for n in (1, 2, 9, 4, 12, 30)]
        return tokens(setup.weights, texts, length=40), np.array([0, 1, 0, 1, 1, 0])

    def both(self, setup):
        module = load_roberta(setup.weights)
        x, y = self.rows(setup)

        def make(cut):
            return ModuleGradients(module, nn.functional.cross_entropy, cut, y)

        return module_params(module), by_length(make, x, 1, widths=(6, 16, 99)), make(x)

    @pytest.mark.slow
    def test_sum_is_that_of_full_width(self, setup):
        params, cut, whole = self.both(setup)
        assert cut.place.tolist() == [0, 0, 1, 1, 1, 2] and len(cut.parts) == 3
        for index in (np.arange(6), np.array([5, 1]), np.array([], np.int64)):
            found = example_sum(cut, params, index, Clip(l2_clip_norm=0.5))
            expected = example_sum(whole, params, index, Clip(l2_clip_norm=0.5))
            for name in params:
                np.testing.assert_allclose(found[name], expected[name], atol=1e-6)


@pytest.mark.slow
def test_weights_and_glues_files_from_folders(tmp_path, monkeypatch):
    """At the paper's batch size, with noise of its σ; 1,100 sentences are 2 steps."""
    monkeypatch.setattr(sst2, "EPOCHS", 1)
    monkeypatch.setattr(grids, "SEEDS", (0, 1))
    weights, out, rows = tmp_path / "weights", tmp_path / "p.md", []
    weights.mkdir()
    write_tiny_weights(weights)

    def noted(run, device):
        rows.append(perform(run, device))
        return rows[-1]

    monkeypatch.setattr("simulations.reproduction.runs.perform", noted)
    reproduce(
        weights=str(weights), data=str(glue(tmp_path)), epsilon=2.0, methods=("dp-sgd",),
        rates=(0.4,), sizes=(0.4,), out=out,
    )  # fmt: skip
    assert [row["steps"] for row in rows] == [2, 2]
    assert {row["options"]["noise.multiplier"] for row in rows} == {1.1457}
    assert not any(row["synthetic"] for row in rows)
    assert out.read_text().startswith("# DP-NSGD and DP-SGD on SST-2\n")


def test_what_is_missing_is_named(tmp_path):
    weights, made = tmp_path / "weights", glue(tmp_path)
    weights.mkdir()
    (weights / "pytorch_model.bin").write_bytes(b"")
    given = {"weights": str(weights)}
    for options, *names in (
        ({}, "--reduced"),
        ({**given, "data": str(weights)}, "fedpriv data fetch sst2"),
        ({**given, "data": str(made), "epsilon": 5.0}, 5.0),
        ({**given, "data": str(made)}, "pytorch_model.bin"),
    ):
        with refuses(ValueError, *names):
            reproduce(**options)


def glue(folder):
    """Synthetic sentences in files of GLUE's form; return their folder."""
    data, out = synthetic_sentences(1_100, 50), folder / "glue"
    out.mkdir()
    for name, part in (("train", data.train), ("dev", data.test)):
        lines = [f"{text}\t{label}" for text, label in zip(part.texts, part.labels, strict=True)]
        (out / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *lines, ""]))
    return out
