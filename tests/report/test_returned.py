"""Which model a run returns: on its page, in its console text, on its card and in its statement."""

from __future__ import annotations

import html
import json
import re

import pytest

from fedpriv.api.result import load
from fedpriv.experiments.experiment import Settings
from fedpriv.privacy.statement.statement import run_statement
from fedpriv.report.export import model_card
from fedpriv.report.head import key_figures
from fedpriv.report.page import measured_lines, render
from fedpriv.report.run_record import read_run
from tests.harness.resealed import reseal
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
    file = folder / "summary.json"
    summary = json.loads(file.read_text())
    public = selected in ("public-only", "start")
    summary |= {"accuracy": 0.3777, "accuracy_public": 0.3666, "gain": 0.1777}
    if public:
        summary |= {"accuracy": 0.2, "gain": 0.0}
    summary["measures"] = [m.to_json() for m in read_run(folder).measures]
    summary["selection"] = {
        "selected": selected, "public": public, "sha256": "ab" * 32, "reason": "", "level": 0.95,
        "examples": 812, "groups": 204, "judged": JUDGED, **changes,
    }  # fmt: skip
    file.write_text(json.dumps(summary))
    return folder


def words(page):
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def test_a_page_begins_with_the_model_that_is_returned(tmp_path):
    page = words(render(read_run(of(tmp_path / "r", "average"))))
    first, _, rest = page.partition("Gain over public-only")
    assert "Returned: the average of the released models (accuracy +4.0 points, " in first
    assert "points, standard error 1.2, over public-only on " in first
    assert "812 public examples in 204 groups" in first and "no ε" in first
    assert "Candidates" in rest
    table = rest.partition("Candidates")[2]  # red before: its standard errors were called ±
    assert "gain standard error lower end" in table and "±" not in page
    assert re.search(r"\b[Aa] model may be returned", table)  # with and without an expected one
    for text in (
        "the last released model, drawn back to 0.5 of its way",
        "31.0 %",
        "+2.0 points",
        "−1.0 points",
    ):
        assert text in rest, text


def test_a_page_says_that_private_training_did_not_beat_public_examples(tmp_path):
    run = read_run(of(tmp_path / "r", "public-only"))
    page = words(render(run))
    first = page.partition("Gain over public-only")[0]
    assert (
        "Returned: a model of public examples alone: no released model is clearly better" in first
    )
    assert "more users, a larger ε or a smaller model would help" in first
    assert "ε was spent on training" in first and "No gain" in first
    for text in (repr(load(tmp_path / "r")), words(load(tmp_path / "r")._repr_html_())):
        assert "a model of public examples alone: no released model" in " ".join(text.split())
        assert text.index("public examples alone") < text.lower().index("gain over public-only")


OF_PUBLIC = "the returned model is made of public examples alone"


def test_only_a_model_that_selection_returned_is_said_to_be_of_public_examples(tmp_path):
    """A private model below public examples has seen everybody, whatever it gains."""
    below = write_run(tmp_path / "below", rounds=4, every=2, public_only=0.9)
    summary = json.loads((below / "summary.json").read_text())
    measures = [m.to_json() for m in read_run(below).measures]
    summary |= {"epsilon": 2.0, "measures": measures, "selection": None}
    (below / "summary.json").write_text(json.dumps(summary))
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
    """Red when they were the last round's, whatever was returned."""
    run = read_run(of(tmp_path / "r", "average"))
    found = {name: (value, remarks) for name, value, remarks in key_figures(run)}
    assert found["Accuracy"][0] == "37.8\u202f%"
    assert found["Accuracy, public users"][0] == "36.7\u202f%"
    assert all("of the returned model" in found[name][1] for name in found if "ccuracy" in name)


@pytest.mark.parametrize(
    ("rule", "model"),
    [("none", "the model after each round"), ("ema", "the 'ema' aggregate of each round")],
)
def test_curves_say_of_which_model_they_are(tmp_path, rule, model):
    folder = of(
        tmp_path / "r", "average x 0.5", judged=JUDGED | {"average x 0.5": JUDGED["average"]}
    )
    options = json.loads((folder / "experiment.json").read_text())["experiment"]
    reseal(folder, experiment=options | {"aggregate": rule})
    run = read_run(folder)
    lines = measured_lines(run, run.figures[0])
    assert len(lines) == 2 and all(line.label.endswith(model) for line in lines)
    page = words(render(run))
    assert f"Curves are of {model}; the returned model, the average of the released" in page
    assert "has 36.7 % on public users and 37.8 % on rostered users" in page
    plain = write_run(tmp_path / "plain", rounds=4, every=2)
    assert "Curves are of" not in words(render(read_run(plain)))


@pytest.mark.parametrize(
    ("selected", "said"),
    [
        ("public-only", "made of public examples alone"),
        ("average", "the average of the released models"),
    ],
)
def test_the_card_says_which_model_it_is(tmp_path, selected, said):
    run = read_run(of(tmp_path / "r", selected))
    shapes = {"kernel": (5, 3)}
    card = model_card(run, 4, shapes, returned=True)
    assert said in card and "| accuracy, rostered users" in card
    value = "20.0" if selected == "public-only" else "37.8"
    assert value in card
    other = model_card(run, 4, shapes)
    assert "this is the model after round 4" in other
    assert said not in other.partition("## Privacy")[0]


def test_pages_say_that_a_model_was_expected_to_be_better(tmp_path):
    """Red when a model that is not shown to be better is returned without a reason."""
    unshown = {**JUDGED, "average": judged(0.32, 0.01, 0.012, -0.02)}
    run = read_run(of(tmp_path / "r", "average", expected="average", judged=unshown))
    page = words(render(run))
    assert "which cost no ε), expected to be better" in page
    assert '"the average of the released models" is returned unless it is more than half a' in page
    other = words(render(read_run(of(tmp_path / "shown", "average"))))
    assert "expected to be better" not in other and "unless it is more than half" not in other


def test_the_card_says_that_nothing_judged_a_model(tmp_path):
    folder = of(tmp_path / "r", "average", expected="average", reason="too few public examples")
    file = folder / "summary.json"
    summary = json.loads(file.read_text())
    for name in ("judged", "level", "examples", "groups"):
        del summary["selection"][name]
    file.write_text(json.dumps(summary))
    card = model_card(read_run(folder), 4, {"kernel": (5, 3)}, returned=True)
    assert "the average of the released models, not judged" in card
    assert "selected on public examples" not in card


def test_the_statement_says_what_the_choice_costs(tmp_path):
    statement = str(run_statement(of(tmp_path / "r", "average")))
    assert "Which model is returned" in statement
    assert "chosen on public examples" in statement and "costs no ε" in statement
    plain = write_run(tmp_path / "plain", options={"task.select": "last"})
    assert "Which model is returned" not in str(run_statement(plain))


def test_settings_that_were_chosen_are_listed_with_what_they_follow_from(tmp_path):
    folder = of(tmp_path / "r", "average")
    assert "Settings from the data" not in words(render(read_run(folder)))
    settings = Settings(
        chosen=("rounds", "bound.l2_clip_norm"),
        cohort=350.0,
        rounds=104,
        l2_clip_norm=20.5,
        start_factor=0.75,
        update_norm=82.5,
        noise_on_mean=0.001,
        noise_on_logit=0.8,
        noise_length=2.5,
        num_public_examples=3000,
    )
    reseal(folder, settings=settings.to_json())
    page = words(render(read_run(folder)))
    assert "Settings from the data's size" in page and "rounds, bound.l2_clip_norm" in page
    assert "82.5" in page and "noise on a logit" in page
    assert "share that is kept of a public start 0.75" in page
    assert "norm of the noise on the mean" in page and "3000" in page.replace(",", "")
