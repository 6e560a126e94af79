"""`fp.run_uncertainty` and its command: of released checkpoints and public examples alone."""

import json

import numpy as np
import pytest

import fedpriv as fp
from fedpriv import json_lines
from fedpriv.checkpoints.store import CheckpointStore
from fedpriv.checkpoints.uncertainty import uncertainty
from fedpriv.experiments.build import make_task
from fedpriv.experiments.load import load_experiment
from fedpriv.tasks.tag_prediction import TagPrediction
from tests.cli.typed import figures, run
from tests.harness.command_line import fedpriv
from tests.harness.refusals import refuses
from tests.harness.resealed import edit_document
from tests.harness.tag_runs import unchanged

PLAN = ("--learning-rate", "0.5", "--strong-convexity", "0.1", "--smoothness", "1")
OPTIONS = {"noise_multiplier": 1.0, "cohort": 6.0, "delta": 1e-3, "seed": 3}


@pytest.fixture(scope="module")
def folder(tiny_corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("uncertain") / "run"
    fp.run("dp-fedavg-tags", corpus=str(tiny_corpus.directory), out=out, rounds=8, eval_every=1,
           keep_checkpoints=None, **OPTIONS)  # fmt: skip
    return out


def test_it_is_of_the_last_checkpoints_figures(folder):
    found = fp.run_uncertainty(folder, ks=(3, 5, 20))
    lines = json_lines.read(folder / "rounds.jsonl")
    for spread, k in zip(found.spreads, (3, 5), strict=False):
        assert spread.rounds == tuple(range(9 - k, 9))
        expected = uncertainty([line["accuracy_public"] for line in lines[-k:]])
        assert float(spread.figures["accuracy"].variance) == pytest.approx(float(expected.variance))
        assert set(spread.figures) == {"accuracy", "recall_at_5"}
    assert found.spreads[2].rounds == () and found.spreads[2].figures == {}
    assert (found.spacing, found.kept, found.aggregate) == (1, 8, "none") and found.synthetic


def test_spacing_and_burn_in_choose_the_rounds(folder):
    assert fp.run_uncertainty(folder, ks=(3,), spacing=2).spreads[0].rounds == (4, 6, 8)
    assert fp.run_uncertainty(folder, ks=(2, 3), spacing=3, burn_in=2).spreads[1].rounds == ()


def test_scores_are_of_the_predicted_class_example_by_example(folder, tiny_corpus):
    found = fp.run_uncertainty(folder, ks=(4,)).spreads[0].scores
    store = CheckpointStore(folder / "checkpoints")
    options = json.loads((folder / "experiment.json").read_text())["experiment"]
    task = make_task(load_experiment("dp-fedavg-tags").with_options(options), tiny_corpus)
    models = [store.load(number)[0] for number in range(5, 9)]
    whole = [np.concatenate([p for p, _ in task.class_scores(m, public=True)]) for m in models]
    answer = np.mean(whole, axis=0).argmax(axis=1)
    own = np.stack([p[np.arange(len(answer)), answer] for p in whole])
    np.testing.assert_allclose(found.mean, own.mean(axis=0))
    np.testing.assert_allclose(found.variance, own.var(axis=0, ddof=1))
    assert ((found.mean > 0) & (found.mean <= 1)).all() and found.variance.shape == found.mean.shape


def test_no_rostered_user_is_measured(folder, monkeypatch):
    asked = []
    for name in ("evaluate", "class_scores"):
        own = getattr(TagPrediction, name)

        def seen(self, params, *, public, own=own, **rest):
            asked.append(public)
            return own(self, params, public=public, **rest)

        monkeypatch.setattr(TagPrediction, name, seen)

    fp.run_uncertainty(folder, ks=(3,))
    assert asked and all(asked)


def test_it_charges_nothing_and_writes_nothing(folder):
    with unchanged(folder):
        fp.run_uncertainty(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "factor"),
    [
        ({"aggregate": "ema", "ema_decay": 0.9}, 0.052632),
        ({"aggregate": "upa", "aggregate_k": 4}, 0.25),
        # Of 4 rounds: shares .818182, .75, .692308, .642857, each of what is left of the former.
        ({"aggregate": "ema", "ema_decay": 0.99, "ema_warmup": True}, 0.481697),
        # Single models do not say how answers together vary.
        ({"aggregate": "opa", "aggregate_k": 4, "eval_every": 1}, None),
        ({"aggregate": "omv", "aggregate_k": 4, "eval_every": 1}, None),
    ],
)
def test_an_aggregate_s_variance_is_rescaled(tiny_corpus, tmp_path, options, factor):
    fp.run("dp-fedavg-tags", corpus=str(tiny_corpus.directory), out=tmp_path / "run", rounds=4,
           keep_checkpoints=None, **OPTIONS, **options)  # fmt: skip
    found = fp.run_uncertainty(tmp_path / "run", ks=(3,))
    told = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert told["weight_square_sum"] == (factor and pytest.approx(factor, abs=5e-6))
    row = told["k"][0]["measures"]["accuracy"]
    expected = factor and pytest.approx(row["stddev"] * factor**0.5, abs=1e-6)
    assert row["released_stddev"] == expected
    said = " ".join(fedpriv("uncertainty", tmp_path / "run", "--k", "3").stdout.split())
    assert factor is None or f"{factor:.3g} times" in said


def test_too_few_are_kept(folder):
    with refuses(ValueError, 8, "eval-every"):
        fp.run_uncertainty(folder, ks=(10, 20))


def test_a_folder_that_was_changed(tiny_corpus, tmp_path):
    """What it names is imported only after its seal was checked."""
    out = tmp_path / "run"
    fp.run("dp-fedavg-tags", corpus=str(tiny_corpus.directory), out=out, rounds=3, **OPTIONS)
    edit_document(out, reference="/nowhere.py:experiment")
    with pytest.raises(ValueError):
        fp.run_uncertainty(out)


def test_a_run_s_table_says_what_it_covers(folder):
    done = run("uncertainty", folder, "--k", "3", "--k", "5", "--k", "20")
    text = " ".join(done.stdout.split())
    for words in ("6 to 8", "4 to 8", "an estimate", "SYNTHETIC"):
        assert words in text, words


def test_as_json(folder):
    found = figures("uncertainty", folder)
    assert [row["k"] for row in found["k"]] == [3, 5, 10, 20]
    assert found["k"][1]["rounds"] == [4, 5, 6, 7, 8] and found["k"][2]["rounds"] == []


def test_a_plan_of_burn_in_and_spacing():
    found = figures("uncertainty", "--plan", *PLAN, "--k", "5")
    assert found["contraction"] == pytest.approx(0.95)
    (row,) = found["k"]
    assert (row["burn_in"], row["spacing"], row["rounds"]) == (90, 72, 450)
    assert "= 0.95" in " ".join(run("uncertainty", "--plan", *PLAN).stdout.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--plan"),
        (("--plan",), "--smoothness"),
        (("--plan", *PLAN[:-1], "9"), "0.5"),
        (("nowhere",), "nowhere"),
        (("nowhere", "--k", "1"), "1"),
    ],
)
def test_what_is_asked_wrongly(arguments, message):
    done = fedpriv("uncertainty", *arguments)
    assert done.exit_code == 2 and message in " ".join(done.stderr.split())
