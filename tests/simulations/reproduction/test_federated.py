"""Cells whose experiment is federated, on a corpus that its task brings."""

import json
from dataclasses import dataclass

import pytest

from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.experiments.build import build
from fedpriv.experiments.tasks import TagPredictionTask
from fedpriv.measures import LOSS
from fedpriv.rng import Key
from fedpriv.runs.backends import serial
from fedpriv.runs.loop import rounds
from simulations.reproduction.items import Cell, Row
from simulations.reproduction.page import markdown
from simulations.reproduction.runs import Run, curve_of, final_runs, perform
from tests.simulations.reproduction.tiny_tables import figure, table

ROUNDS = 4


@dataclass(frozen=True, kw_only=True)
class Brought(TagPredictionTask):
    corpus: Corpus

    def __call__(self, experiment, corpus):
        return super().__call__(experiment, self.corpus)


@pytest.fixture
def by_user(tiny_corpus):
    def make(split="test", reduced=False, **options):
        usual = {"cohort": 20, "noise_multiplier": 0.2, "inputs": "unit-norm",
                 "local_learning_rate": 10.0, "l2_clip_norm": 5.0}  # fmt: skip
        experiment = FederatedExperiment(
            name="tiny-by-user", description="A test.", task=Brought(corpus=tiny_corpus),
            rounds=ROUNDS, delta=1e-3,
        )  # fmt: skip
        return experiment.with_options(usual).with_options(options)

    return make


def run(experiment, seed=1, curve=0):
    return Run(experiment=experiment, split="test", seed=seed, reduced=False, curve=curve)


@pytest.mark.slow
def test_a_line_holds_what_rostered_users_held_out_and_what_public_users_have(by_user, tiny_corpus):
    line = perform(run(by_user()))
    components = build(by_user(seed=1), None)
    backend = serial(by_user(), components)
    [*_, (_, state)] = rounds(components, backend, Key.simulation(1))
    params = components.algorithm.result(state)
    held_out = components.task.evaluate(params, public=False)
    public = components.task.evaluate(params, public=True)
    assert held_out.get("accuracy") != public.get("accuracy")
    assert (line["accuracy"], line["loss"]) == (held_out.get("accuracy"), held_out.get("loss"))
    assert line["recall_at_5"] == held_out.get("recall_at_5")
    assert line["accuracy_public"] == public.get("accuracy")
    assert (line["unit"], line["steps"], line["data"]) == ("user", ROUNDS, "tiny-synthetic")
    assert line["failed_in_last_round"] == 0 and line["noise_multiplier"] == 0.2
    assert line["epsilon"] == components.plan.epsilon(ROUNDS).value
    assert line == json.loads(json.dumps(line))


@pytest.mark.slow
def test_calibrated_noise_is_in_the_line_and_on_the_page(by_user):
    experiment = by_user(**{"target-epsilon": 50.0})
    assert experiment.options()["noise.multiplier"] is None
    one = table(Row(label="a", cells={"ours": Cell(make=lambda split, reduced: experiment)}))
    [found] = final_runs(one, {}, seeds=(1,), reduced=False)
    line = perform(found)
    assert line["noise_multiplier"] > 0
    text = markdown(one, {line["identity"]: line}, seeds=(1,))
    assert f"noise multiplier {line['noise_multiplier']:.4f}, simulated)" in text
    assert "per user" in text and "(SYNTHETIC data)" in text


@pytest.mark.slow
def test_a_figure_has_a_curve_over_rounds(by_user):
    one = figure(Row(label="a", cells={"ours": Cell(make=by_user)}), points=2)
    [found] = final_runs(one, {}, seeds=(1,), reduced=False)
    assert found.curve == 2
    line = perform(found)
    assert [point[0] for point in line["curve"]] == [2, 4]
    assert line["curve_of"] == ["accuracy", "recall_at_5", "loss"]
    assert line["curve"][-1][1:] == [line[name] for name in line["curve_of"]]
    assert curve_of(line, LOSS)[-1] == (4, line["loss"])


def test_a_person_knows_it_by_its_options(by_user):
    assert "task.inputs unit-norm" in str(run(by_user()))
