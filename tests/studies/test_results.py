"""A study that was run: its data frames and its page agree."""

from dataclasses import replace
from html import unescape

import pytest

import fedpriv as fp
from fedpriv.privacy.statement.statement import run_statement
from tests.studies.small import small, study, task


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    out = tmp_path_factory.mktemp("study") / "small"
    return fp.study(study(), out, workers=1, progress=False)


@pytest.mark.slow
def test_page_and_data_frames_show_the_runs(found):
    text = found.page.read_text("utf-8")
    [private, free] = found.table.itertuples()
    assert private.Index[2] == 2.0 and private.epsilon <= 2.0 and free.seeds == [0, 1]
    reached = [trial.run.summary["accuracy"] for trial in found.record.trials]
    assert sorted(found.trials["accuracy"]) == sorted(reached)
    assert f"{100 * private.accuracy:.1f}\u202f%" in text and "Synthetic data" in text


NOTE = "10,000 images decoded from JPEG: lossy"


def noted(experiment):
    made = task(experiment)
    read = {"note": NOTE, "source": {"b.xz": "12", "a.xz": "34"}, "credit": "Krizhevsky"}
    made._name, made._synthetic, made._provenance = "CIFAR-10", False, read
    return made


@pytest.mark.slow
def test_a_statement_and_the_page_say_what_was_read_whatever_the_task_is_called(tmp_path, found):
    experiment = replace(small(), task=noted)
    made = fp.Study(name="s", methods={"x": experiment}, epsilons=[2.0], options={"rounds": 1})
    done = fp.study(made, tmp_path / "out", workers=1, progress=False)
    said = f"The data 'CIFAR-10' (files a.xz, b.xz): {NOTE}."
    run = done.record.trials[0].run
    assert run_statement(run.directory).paragraphs("The data") == (said,)
    assert unescape(done.page.read_text("utf-8")).count(said) == 2  # above, and in the statement
    assert run.corpus["credit"] == "Krizhevsky"
    other = run_statement(found.record.trials[0].run.directory)
    assert "The data" not in {part.title for part in other.sections}
