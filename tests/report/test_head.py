"""The head of the report: ε first, gain, failures, missing rounds, provenance; then its rounds."""

import json
import os
import re
import shlex

import pytest

from fedpriv.cli.run import settings_of
from fedpriv.experiments.load import load_experiment
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.ledger.state import read_ledger
from fedpriv.report.head import failures_figure, provenance_of, rounds_figure
from fedpriv.report.page import render
from fedpriv.report.run_record import read_run
from tests.harness.resealed import reseal
from tests.harness.shown import head
from tests.report.conftest import edit_rows


def _head(folder, *others) -> str:
    """The head as the page has it; without the plots below."""
    return head(render(read_run(folder), [read_run(other) for other in others]))


def test_epsilon_comes_first_then_gain_failures_rounds_then_the_origin(make_run) -> None:
    folder = make_run(public_only=0.183)
    said, run = _head(folder), read_run(folder)
    words = (
        " ε ", "δ = ", "add-remove relation", "Gain over public-only", "Failures", "Rounds",
        "Accuracy", "date", "seed", "command", "version", "ledger head",
    )  # fmt: skip
    places = [said.index(word) for word in words]
    assert places == sorted(places)
    gain = 100 * (run.summary["accuracy"] - 0.183)
    assert f"+{gain:.1f} points" in said and "public-only 18.3 %" in said
    assert "not measured" not in said and "fedpriv 0.1.0" in said


def test_the_gain_over_seeds_has_an_interval(make_run) -> None:
    shown = _head(*(make_run(f"{seed}", seed=seed, public_only=0.18) for seed in range(4)))
    said = r"points mean over 4 seeds 95 % t-interval over seeds \+\d"
    assert re.search(said, shown), shown


def test_failures_are_counted_and_a_secure_run_records_none(make_run) -> None:
    folder = make_run("a", rounds=3, every=1)
    edit_rows(folder / "diagnostics.jsonl", num_failed=2, cohort_size=1000)
    (folder / "summary.json").write_text(
        json.dumps({"first_failure": "ZeroDivisionError", "rounds_mostly_failed": 1})
    )
    name, value, remarks = failures_figure(read_run(folder))
    assert (name, value) == ("Failures", "6")
    assert "of 3,000 users drawn" in remarks and "a cause: ZeroDivisionError" in remarks
    assert "more than half in 1 round" in remarks
    assert failures_figure(read_run(make_run("b", mode="secure")))[1:] == (
        "–",
        ["a secure run records none"],
    )


def test_missing_rounds_are_counted_and_explained(make_run) -> None:
    assert rounds_figure(read_run(make_run("a")))[1:] == ("20 of 20", ["none missing"])
    folder = make_run("b", rounds=3, planned=9)
    assert rounds_figure(read_run(folder))[1:] == ("3 of 9", ["6 missing: unfinished"])
    assert "Unfinished: 3 of 9 rounds" in _head(folder)
    (folder / "summary.json").write_text(json.dumps({"stopped_early": "target-epsilon"}))
    said = "6 missing: one more would exceed the target ε"
    assert rounds_figure(read_run(folder))[2] == [said]
    with Ledger.open(folder / "ledger.jsonl") as ledger:
        ledger.resume()
        ledger.charge(4, 1)
        ledger.resume()
        ledger.charge(4, 2)
    assert rounds_figure(read_run(folder))[2] == [said, "1 attempt redone, each charged"]
    (folder / "summary.json").write_text(json.dumps({"stopped_early": "lost-attempts"}))
    [once] = rounds_figure(read_run(folder))[2]
    assert "6 missing" in once and "redone" in once


# The origin: what is needed to run it again.


def test_the_ledger_head_is_that_of_the_last_line(make_run):
    folder = make_run()
    last = json.loads((folder / "ledger.jsonl").read_text().splitlines()[-1])
    assert provenance_of(read_run(folder)).ledger_head == last["hash"]
    assert last["hash"] in _head(folder)


@pytest.mark.parametrize("name", ["adadps-tags", "dp-fedavg-tags"])
def test_the_command_gives_the_very_experiment(make_run, name):
    experiment = load_experiment(name).with_options({"cohort": 30.0, "rounds": 7, "seed": 3})
    folder = make_run(name=name, backend="ray")
    reseal(folder, experiment=experiment.options())
    command = provenance_of(read_run(folder)).command
    assert command is not None
    fedpriv, run, reference, *rest = shlex.split(command)
    assert (fedpriv, run, reference, rest[:2]) == ("fedpriv", "run", name, ["--backend", "ray"])
    options = settings_of(rest[3::2])
    assert rest[2::2] == ["-s"] * len(options)
    assert load_experiment(name).with_options(options) == experiment


def test_where_no_single_command_does_it_says_so(make_run):
    assert provenance_of(read_run(make_run("a", backend="flower"))).command is None
    folder = make_run("b")
    for reference, said in ((None, "made from Python"), ("a b", "fedpriv run 'a b'")):
        reseal(folder, reference=reference)
        assert provenance_of(read_run(folder)).short_command.startswith(said)


def test_a_secure_run_has_no_seed(make_run):
    provenance = provenance_of(read_run(make_run(mode="secure")))
    assert provenance.seed == "none: a secure run"
    assert provenance.command is not None
    assert "--secure" in provenance.command and "seed=" not in provenance.command


def test_the_date_is_that_of_the_start_whatever_happens_to_the_files(make_run):
    folder = make_run()
    started = read_ledger(folder / "ledger.jsonl")[1].extra["started"]
    os.utime(folder / "ledger.jsonl", (0, 0))
    assert provenance_of(read_run(folder)).date == started != "1970-01-01 00:00 UTC"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", started)
    assert f"<dd>{started}</dd>" in render(read_run(folder))
