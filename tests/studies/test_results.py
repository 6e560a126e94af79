"""A study that was run: its data frames, its page and its notebook agree."""

import json

import pytest

import fedpriv as fp
from tests.studies.small import study
from tests.studies.test_notebook import run_cells


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    out = tmp_path_factory.mktemp("study") / "small"
    return fp.study(study(), out, workers=1, progress=False, format="notebook")


def test_page_and_data_frames_show_the_runs(found):
    text = found.page.read_text("utf-8")
    [private, free] = found.table.itertuples()
    assert private.Index[2] == 2.0 and private.epsilon <= 2.0 and free.seeds == [0, 1]
    reached = [trial.run.summary["accuracy"] for trial in found.record.trials]
    assert sorted(found.trials["accuracy"]) == sorted(reached)
    assert f"{100 * private.accuracy:.1f}\u202f%" in text and "Synthetic data" in text
    assert "0 failed" in text


def test_differences_from_public_only_are_over_users(found):
    rows = found.differences
    assert set(rows["second"]) <= {"public-only"} and len(rows) in (0, 2)
    for row in rows.itertuples():
        assert row.interval_over.startswith("users") and row.low <= row.difference <= row.high


def test_the_notebook_runs_where_it_lies(found, monkeypatch):
    document = json.loads((found.directory / "study.ipynb").read_text("utf-8"))
    names, drawn = run_cells(document, found.directory, monkeypatch)
    assert len(names["results"]) == 2 and len(drawn) == 2


def test_an_unknown_format_is_refused_before_the_work(tmp_path):
    with pytest.raises(ValueError, match="format 'pdf' is unknown; use one of page, notebook"):
        fp.study(study(), tmp_path / "out", format="pdf")
    assert not (tmp_path / "out").exists()
