"""Runs that return the model that is selected on public examples, and what else they return."""

import json
import shutil

import numpy as np
import pytest

from fedpriv.api.result import load
from fedpriv.checkpoints.tensor_files import params_sha256, read_tensors, write_tensors
from fedpriv.experiments.build import build
from fedpriv.experiments.start import public_only
from fedpriv.privacy.statement.statement import describe_returned_model
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.report.comparison.groups import columns_of, read_groups
from fedpriv.report.comparison.tables import as_rows
from fedpriv.report.export import export_run, load_model, released_params
from fedpriv.report.run_record import read_run
from fedpriv.rng import Key
from fedpriv.runs.prepared import resume_run
from fedpriv.runs.selection import select
from tests.harness.kills import Killed, after_round
from tests.harness.refusals import refuses
from tests.harness.tag_runs import average, checkpoint, iterate, same
from tests.running.selected import topical

NOISY = {"target_epsilon": 0.09}
GAINS = {"seed": 1}  # at others public examples may win


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return topical.make(tmp_path_factory.mktemp("topical") / "c")


@pytest.fixture(scope="module")
def folders(corpus, tmp_path_factory):
    """A run folder each of a run that beats public examples, and of one that does not."""
    room = tmp_path_factory.mktemp("runs")
    topical.start(corpus, room / "gains", **GAINS).run()
    topical.start(corpus, room / "noisy", **NOISY).run()
    return {"gains": room / "gains", "noisy": room / "noisy"}


def said_to_be(folder, **facts):
    """Let the summary say otherwise what was selected."""
    summary = json.loads((folder / "summary.json").read_text())
    summary["selection"] |= facts
    (folder / "summary.json").write_text(json.dumps(summary))


def wrong_of(folder):
    return " ".join(check.text for check in verify_run(folder).checks if not check.ok)


def test_a_run_that_beats_public_examples_returns_a_released_model(folders):
    run = read_run(folders["gains"])
    found = run.selection
    assert (found["selected"], found["public"]) == ("average", False)
    assert run.gain > 0.0 and found["judged"]["average"]["lower"] > 0.0
    assert same(released_params(run)[1], average(checkpoint(folders["gains"])))


def test_a_run_that_does_not_returns_the_public_model_and_gains_nothing(corpus, folders):
    run = read_run(folders["noisy"])
    found, summary = run.selection, run.summary
    assert (found["selected"], found["public"]) == ("public-only", True)
    assert summary["gain"] == 0.0
    assert summary["accuracy"] == summary["accuracy_public_only"]
    assert summary["epsilon"] > 0.08  # it was spent all the same
    task = build(topical.experiment(**NOISY), corpus).task
    alone = public_only(task, Key.simulation(0).fold("init")).model
    assert same(released_params(run)[1], alone)


@pytest.mark.parametrize("which", ["gains", "noisy"])
def test_what_is_returned_exported_and_predicted_is_one_model(folders, tmp_path, which):
    folder = folders[which]
    run, digest = load(folder), read_run(folder).selection["sha256"]
    assert params_sha256(run.params) == digest
    export_run(folder, tmp_path / "e")
    exported, _ = read_tensors(tmp_path / "e" / "model.safetensors")
    assert params_sha256(exported) == digest
    for place in (folder, tmp_path / "e"):
        model = load_model(place)
        assert params_sha256({"kernel": model.kernel, "bias": model.bias}) == digest
    # What was asked for by name is what it was.
    read = read_run(folder)
    assert same(released_params(read, 2)[1], average(checkpoint(folder, 2)))
    assert same(released_params(read, last_iterate=True)[1], iterate(checkpoint(folder)))
    export_run(folder, tmp_path / "2", round_num=2)
    assert same(
        read_tensors(tmp_path / "2" / "model.safetensors")[0], average(checkpoint(folder, 2))
    )


def test_a_returned_model_that_is_gone_is_selected_anew(corpus, tmp_path):
    topical.start(corpus, tmp_path / "r").run()
    file = tmp_path / "r" / "selected.safetensors"
    params, _ = read_tensors(file)
    file.unlink()
    with refuses(ValueError, "selected.safetensors"):
        export_run(tmp_path / "r", tmp_path / "e")
    with refuses(ValueError, file, "resume"):  # another run would cost its ε
        _ = load(tmp_path / "r").params
    # It is selected anew where the run is resumed, and is the same.
    resume_run(tmp_path / "r").run()
    assert same(load(tmp_path / "r").params, params)


@pytest.mark.parametrize("which", ["gains", "noisy"])
def test_a_resumed_run_returns_the_same_model(corpus, folders, tmp_path, which):
    changes = {"gains": GAINS, "noisy": NOISY}[which]
    with pytest.raises(Killed):
        topical.start(corpus, tmp_path / "r", **changes).run(after_round(2))
    resumed = resume_run(tmp_path / "r").run()
    whole = read_run(folders[which]).summary
    assert resumed["selection"] == whole["selection"]
    assert resumed["accuracy"] == whole["accuracy"] and resumed["gain"] == whole["gain"]


def test_a_secure_run_selects_too(corpus, tmp_path):
    summary = topical.start(corpus, tmp_path / "r", secure=True, **NOISY).run()
    found = summary["selection"]
    assert found["selected"] in found["judged"] and summary["accuracy"] is None
    assert params_sha256(load(tmp_path / "r").params) == summary["selection"]["sha256"]
    again = resume_run(tmp_path / "r").run()
    assert again["selection"] == summary["selection"]


@pytest.mark.parametrize(
    "changes",
    [{"split": "by-sentence"}, {"public_text": "all-posts", "start": "fresh", **NOISY}],
    ids=["by-sentence", "all-posts"],
)
def test_where_nothing_can_be_judged_the_last_is_returned(corpus, tmp_path, changes):
    """Rostered users train on the same threads, or have the titles and tags of these posts."""
    summary = topical.start(corpus, tmp_path / "r", **changes).run()
    found = summary["selection"]
    assert (found["selected"], found["public"]) == ("average", False) and found["reason"]
    assert summary["epsilon_does_not_cover"] == []
    assert same(load(tmp_path / "r").params, average(checkpoint(tmp_path / "r")))
    assert not build(topical.experiment(**changes), corpus).task.view.split.selecting


def test_too_few_public_threads_return_the_public_model(tmp_path):
    summary = topical.start(topical.make(tmp_path / "c", threads=24), tmp_path / "r").run()
    found = summary["selection"]
    assert (found["selected"], found["public"]) == ("public-only", True)
    assert found["reason"] and summary["gain"] == 0.0


@pytest.mark.parametrize("which", ["gains", "noisy"])
@pytest.mark.parametrize("called", ["as it was", "public-only", "last"])
def test_an_exchanged_model_is_found_whatever_the_summary_says(folders, tmp_path, which, called):
    folder = shutil.copytree(folders[which], tmp_path / "r")
    assert verify_run(folder).ok and not verify_run(folder).not_checked[1:]
    params, facts = read_tensors(folder / "selected.safetensors")
    other = {n: a + np.float32(1.0) for n, a in params.items()}
    write_tensors(folder / "selected.safetensors", other, facts)
    if called != "as it was":
        public = called == "public-only"
        said_to_be(folder, selected=called, public=public, sha256=params_sha256(other))
    assert "selected.safetensors" in wrong_of(folder)
    with refuses(ValueError, "selected.safetensors"):
        load(folder).params  # noqa: B018
    with refuses(ValueError, "selected.safetensors"):
        export_run(folder, tmp_path / "e")
    assert not (tmp_path / "e").exists()


@pytest.mark.parametrize(
    "name", ["average x nan", "last x", "start", "average x 0.5", "mine", "public-only"]
)
def test_a_name_that_is_not_the_models_is_found(folders, tmp_path, name):
    folder = shutil.copytree(folders["gains"], tmp_path / "r")
    said_to_be(folder, selected=name, public=name == "public-only")
    assert not verify_run(folder).ok
    with refuses(ValueError, "summary.json"):
        export_run(folder, tmp_path / "e")


@pytest.mark.parametrize("rule", ["opa", "omv"])
def test_several_models_that_answer_together_are_no_candidates(corpus, rule):
    with refuses(ValueError, f"'{rule}'", "'public'"):
        build(topical.experiment(aggregate=rule), corpus)


def test_a_start_from_a_file_is_never_called_public(corpus, tmp_path):
    free = topical.start(corpus, tmp_path / "free", target_epsilon=None, noise="none")
    free.run()
    for name in ("selected.safetensors", "checkpoints/round-000003.safetensors"):
        given = {"start": "file", "start_file": str(tmp_path / "free" / name)}
        run = topical.start(corpus, tmp_path / name.split("/")[0], **given, **NOISY)
        found = run.run()["selection"]
        assert (found["selected"], found["public"]) == ("average", False) and found["reason"]


@pytest.mark.parametrize("moved", [False, True])
def test_a_returned_model_says_what_it_was_trained_on(corpus, tmp_path, moved):
    without = {"target_epsilon": None, "noise": "none"}
    topical.start(corpus, tmp_path / "free", **without).run()
    file = tmp_path / "free" / "selected.safetensors"
    if moved:
        file = file.rename(tmp_path / "elsewhere.safetensors")
    given = {"start": "file", "start_file": str(file), **NOISY}
    with refuses(ValueError, "start-without-privacy"):
        topical.start(corpus, tmp_path / "r", secure=True, **given)
    assert not (tmp_path / "r").exists()


def test_a_model_that_is_not_finite_is_no_candidate(corpus, folders, tmp_path):
    topical.start(corpus, tmp_path / "r", server_learning_rate=3e38, select="last").run()
    prepared = topical.start(corpus, tmp_path / "s")
    broken = {n: np.full_like(a, np.nan) for n, a in iterate(checkpoint(folders["gains"])).items()}
    found = select(prepared.components, prepared.begun, prepared.public, {"last": broken})
    prepared.folder.close()
    assert found.name in found.judgement.judged
    assert {*found.judgement.judged} <= {"public-only", "start"}


def test_a_run_that_selects_nothing_says_that_it_is_worse_than_public_examples(corpus, tmp_path):
    summary = topical.start(corpus, tmp_path / "r", select="last", **NOISY).run()
    assert summary["gain"] < 0.0
    said, no_gain = describe_returned_model(summary)
    assert no_gain and f"{-100 * summary['gain']:.1f} points" in said
    assert said.split(";")[0] in " ".join(str(load(tmp_path / "r")).split())


def test_a_comparison_has_the_returned_models_figures(folders):
    (group,) = read_groups([folders["noisy"]])
    run = read_run(folders["noisy"])
    last = run.diagnosed[-1]["accuracy"]
    headline = next(c for c in columns_of([group]) if c.diagnosed and c.measure.name == "accuracy")
    assert group.measure(headline).mean == run.summary["accuracy"] != last
    (row,) = as_rows([group])
    assert run.summary["accuracy"] in row.values() and last not in row.values()
