"""The experiments of next-word prediction: they run, start in public, say what they measure."""

import json

import pytest

from fedpriv.experiments.build import build
from fedpriv.experiments.ready_made import words
from fedpriv.runs.prepared import start_run
from tests.tasks.words import phrases

SMALL = {"rounds": 2, "cohort": 6.0, "vocabulary": 30, "sequence-length": 6, "eval-every": 1}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return phrases.write(tmp_path_factory.mktemp("corpora") / "phrases")


@pytest.mark.slow
@pytest.mark.parametrize("make", words.EXPERIMENTS, ids=lambda make: make.__name__)
def test_an_experiment_runs(make, corpus, tmp_path):
    experiment = make().with_options(SMALL)
    prepared = start_run(experiment, reference=None, corpus=corpus, out=tmp_path / "run")
    prepared.run()
    records = [
        json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    ]
    assert len(records) == 2 and 0 <= records[-1]["accuracy_public"] <= 1
    assert records[-1]["perplexity_public"] > 1
    document = json.loads((tmp_path / "run" / "experiment.json").read_text())
    assert document["start"]["kind"] == experiment.options()["start"]
    assert document["measures"][0]["label"] == "word accuracy"
    assert (tmp_path / "run" / "tokens.json").is_file()


@pytest.mark.slow
def test_sizes_and_lengths_are_options(corpus):
    full = words.fedavg_words().with_options({"model": "full", "sequence-length": 9})
    made = build(full, corpus)
    from fedpriv.rng import Key

    params = made.task.init_params(Key.simulation(0))
    assert params["from_state"].shape == (4 * 670, 670) and "output" in params
    assert made.task.encoding.length == 9
