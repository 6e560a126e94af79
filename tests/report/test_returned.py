"""Which model a run returns: on its page, in its console text, on its card and in its statement."""

import json

import pytest

from fedpriv.api.result import load
from fedpriv.privacy.statement.statement import run_statement
from fedpriv.report.export import model_card
from fedpriv.report.head import key_figures
from fedpriv.report.page import render
from fedpriv.report.run_record import read_run
from tests.experiments.test_settings import settings_of
from tests.harness.resealed import edit_json, reseal
from tests.harness.shown import words
from tests.report.conftest import write_run

OPTIONS = {"task.select": "public"}


def judged(value, gain, stderr, lower):
    return {"value": value, "gain": gain, "stderr": stderr, "lower": lower}


JUDGED = {
    "public-only": judged(0.31, 0.0, 0.0, 0.0),
    "average": judged(0.35, 0.04, 0.012, 0.011),
    "last x 0.5": judged(0.33, 0.02, 0.013, -0.01),
}


def of(folder, selected, **changes):
    """A run folder whose summary says what it returns, and figures that no round has."""
    write_run(folder, rounds=4, every=2, public_only=0.2, options=OPTIONS)
    public = selected in ("public-only", "start")
    reached = {"accuracy": 0.2, "gain": 0.0} if public else {"accuracy": 0.3777, "gain": 0.1777}
    selection = {
        "selected": selected, "public": public, "sha256": "ab" * 32, "reason": "", "level": 0.95,
        "examples": 812, "groups": 204, "judged": JUDGED, **changes,
    }  # fmt: skip
    measures = [m.to_json() for m in read_run(folder).measures]
    reached |= {"accuracy_public": 0.3666, "measures": measures, "selection": selection}
    edit_json(folder / "summary.json", **reached)
    return folder


def test_a_page_begins_with_the_model_that_is_returned(tmp_path):
    page = words(render(read_run(of(tmp_path / "r", "average"))))
    first, _, rest = page.partition("Gain over public-only")
    for text in ("Returned: ", "+4.0 points", "standard error 1.2", "812", "204", "no ε"):
        assert text in first, text
    assert "Candidates" in rest and "±" not in page
    for text in ("31.0 %", "+2.0 points", "−1.0 points"):
        assert text in rest, text


OF_PUBLIC = "the returned model is made of public examples alone"


def test_only_a_model_that_selection_returned_is_said_to_be_of_public_examples(tmp_path):
    """A private model below public examples has seen everybody, whatever it gains."""
    below = write_run(tmp_path / "below", rounds=4, every=2, public_only=0.9)
    measures = [m.to_json() for m in read_run(below).measures]
    edit_json(below / "summary.json", epsilon=2.0, measures=measures, selection=None)
    run = read_run(below)
    assert run.gain < 0.0 and "below public examples alone" in words(render(run))
    for selected, public in (("average", False), ("start", True), ("public-only", True)):
        folder = of(tmp_path / selected, selected, judged=JUDGED | {"start": JUDGED["public-only"]})
        found = read_run(folder)
        for text in (words(render(found)), model_card(found, 4, {"kernel": (5, 3)}, returned=True)):
            assert (OF_PUBLIC in text) == public
    assert OF_PUBLIC not in words(render(run)) + repr(load(below)) + load(below)._repr_html_()
    assert OF_PUBLIC not in model_card(run, 4, {"kernel": (5, 3)}, returned=True)


@pytest.mark.parametrize("recorded", [{}, {"public_of_rostered": 3}, {"public_of_rostered": None}])
def test_of_no_model_is_it_said_that_it_saw_nobodys_data(tmp_path, recorded):
    """Public examples may equal rostered users'; not every task, nor a secure run, looks."""
    folder = of(tmp_path / "r", "public-only")
    corpus = json.loads((folder / "experiment.json").read_text())["corpus"]
    reseal(folder, corpus=corpus | recorded)
    run = read_run(folder)
    card = model_card(run, 4, {"kernel": (5, 3)}, returned=True)
    for text in (words(render(run)), card, repr(load(folder)), load(folder)._repr_html_()):
        assert "saw no" not in text and "seen no" not in text


def test_figures_are_of_the_returned_model(tmp_path):
    run = read_run(of(tmp_path / "r", "average"))
    found = {name: (value, remarks) for name, value, remarks in key_figures(run)}
    assert found["Accuracy"][0] == "37.8\u202f%"
    assert found["Accuracy, public users"][0] == "36.7\u202f%"
    assert all("of the returned model" in found[name][1] for name in found if "ccuracy" in name)


def test_the_statement_says_what_the_choice_costs(tmp_path):
    statement = str(run_statement(of(tmp_path / "r", "average")))
    assert "Which model is returned" in statement
    assert "chosen on public examples" in statement and "costs no ε" in statement
    plain = write_run(tmp_path / "plain", options={"task.select": "last"})
    assert "Which model is returned" not in str(run_statement(plain))


def test_settings_that_were_chosen_are_listed_with_what_they_follow_from(tmp_path):
    folder = of(tmp_path / "r", "average")
    assert "Settings from the data" not in words(render(read_run(folder)))
    settings = settings_of(6_716, 8.0)
    reseal(folder, settings=settings.to_json())
    page = words(render(read_run(folder)))
    assert "Settings from the data's size" in page
    assert "82.5" in page and "7665" in page.replace(",", "")
