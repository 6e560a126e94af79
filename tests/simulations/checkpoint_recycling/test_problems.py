"""Recycling checkpoints of problems: aggregates are a run's own, and commands give pages."""

from dataclasses import replace

import numpy as np
import pytest

from fedpriv.checkpoints.aggregates import packed
from fedpriv.experiments.build import build
from fedpriv.training.evaluate import measure_models
from simulations.checkpoint_recycling import problems
from simulations.checkpoint_recycling.checkpoints import LAST, Aggregates, averages, checkpoints
from tests.harness.refusals import refuses
from tests.simulations.photographs.records import write_records
from tests.tasks.words import phrases

WHICH = Aggregates(decays=(0.8,), ks=(3,))
TINY = {"log-rows": 60, "epochs": 0.25, "batch-size": 10.0, "buckets": 20}


@pytest.fixture
def conversions():
    made = problems.conversions(reduced=True)
    return replace(made, options={**made.options, **TINY}, which=WHICH, seeds=2, epsilons=(6.0,))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_records(tmp_path_factory.mktemp("cifar"), 40, 400)


@pytest.mark.slow
def test_outputs_are_those_that_a_run_would_measure(conversions):
    experiment = conversions.make().with_options({**conversions.options, "target-epsilon": 6.0})
    made = build(experiment, None)
    past = averages(checkpoints(experiment, made, 0), WHICH)
    own = measure_models(made.task, packed("opa", list(past.recent)), public=True)
    assert own is not None and len(past.recent) == 3
    as_labels = replace(conversions, outputs={"OPA": problems._accuracy("opa")})
    found = problems.measured(as_labels, made.task, past)
    assert own.get("accuracy") == pytest.approx(found["OPA 3"], abs=1e-12)


def test_seeds_are_runs_of_their_own(conversions, capsys):
    first = problems.trained(conversions)
    ((case, values),) = first.values.items()
    assert (case.epsilon, len(capsys.readouterr().err.splitlines())) == (6.0, 2)
    assert first.synthetic and values[LAST][0] != values[LAST][1]


def test_what_is_no_better_than_chance_is_no_signal(conversions):
    apart = np.array([0.0, 0.01])
    good = {LAST: 0.3 + apart, "EMA 0.8": 0.2 + apart, "UPA 3": 0.4 + apart}
    assert problems.verdict(conversions, good) == (
        "Over seeds clearly better: EMA 0.8; clearly worse: UPA 3."
    )
    assert "No signal" in problems.verdict(conversions, {name: v + 0.2 for name, v in good.items()})
    alone = {name: v[:1] for name, v in good.items()}
    assert problems.verdict(conversions, alone) == "One seed says nothing of differences."
    higher = replace(conversions, measure=problems.ACCURACY, chance=0.1)
    assert "better: UPA 3; clearly worse: EMA 0.8" in problems.verdict(higher, good)


def test_a_folder_of_photographs_is_none_of_conversions():
    with refuses(ValueError, "here"):
        problems.reproduce(what="pcvr", folder="here")


@pytest.mark.slow
def test_the_average_of_public_models_is_a_start(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "cache"))
    made = problems.within(problems.cifar100(reduced=True), str(folder))
    small = {"batch-size": 6.0, "epochs": 0.6}
    assert made.public is not None
    made = replace(
        made, options={**made.options, **small}, public={**made.public, **small}, which=WHICH,
        seeds=1, epsilons=(8.0,),
    )  # fmt: skip
    found = problems.trained(made)
    assert [case.start for case in found.values] == [
        problems.FRESH,
        *problems._STARTS,
    ]
    text = problems.page(made, found, command="c")
    assert "± inf" not in text and "nan" not in text


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return phrases.write(tmp_path_factory.mktemp("corpora") / "phrases")


class TestNextWords:
    @pytest.fixture
    def made(self):
        problem = problems.next_words(reduced=True)
        small = {"rounds": 4, "vocabulary": 30, "sequence-length": 6, "min-separation": 2}
        return replace(problem, options={**problem.options, **small}, which=WHICH, seeds=1)

    @pytest.mark.slow
    def test_its_noise_is_the_trees_and_its_page_says_whose_examples_are_measured(
        self, made, corpus
    ):
        ((case, options), (_, free)) = problems._cases(made)
        plan = build(made.make().with_options(options), corpus).plan
        assert plan.live_mechanism.privatizer.name == "tree" and plan.unit == "user"
        assert (case.epsilon, plan.target_epsilon) == (8.0, 8.0)
        assert build(made.make().with_options(free), corpus).plan.is_private is False
        found = problems.trained(made, corpus)
        text = problems.page(made, found, command="c")
        for words in (
            "user-level, zero-out",
            "rostered users' held-out",
            "groups in turn",
            "SYNTHETIC",
        ):
            assert words in text, words
        assert set(found.values[case]) == {LAST, "EMA 0.8", "UPA 3", "OPA 3", "OMV 3"}

    @pytest.mark.slow
    def test_outputs_are_those_that_a_run_would_measure(self, made, corpus):
        (_, options), _ = problems._cases(made)
        experiment = made.make().with_options(options)
        components = build(experiment, corpus)
        past = averages(checkpoints(experiment, components, 0), WHICH)
        found = problems.measured(made, components.task, past)
        for rule in ("opa", "omv"):
            own = measure_models(components.task, packed(rule, list(past.recent)), public=False)
            assert own is not None
            assert own.get("accuracy") == pytest.approx(found[f"{rule.upper()} 3"], abs=1e-12)


def test_runs_on_a_device_are_the_processors_to_rounding_and_name_it(conversions, monkeypatch):
    one = replace(conversions, seeds=1)
    usual = problems.trained(one)
    monkeypatch.setattr("simulations.checkpoint_recycling.checkpoints.serial", None)
    found = problems.trained(one, device="cpu")
    assert usual.devices == "" and found.devices == " Trained on cpu."
    for case, values in usual.values.items():
        for name, value in values.items():
            np.testing.assert_allclose(found.values[case][name], value, rtol=1e-6)
    assert "Trained on cpu." in problems.page(one, found, command="c")
