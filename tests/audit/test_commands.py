"""`fedpriv audit` and `fedpriv attack membership` as a user types them; exit 1 where refuted.

A thousand canaries; the seed is fixed, and a right mechanism is refuted once in a thousand audits.
"""

import json

import pytest

from fedpriv import cli
from tests.cli.typed import main, run
from tests.harness.command_line import CliRunner

SETTING = ("--rounds", "2", "--cohort", "30", "--noise-multiplier", "1", "--delta", "0.001")

OWN = """
from dataclasses import replace
import fedpriv
from fedpriv.mechanisms.gaussian import Gaussian
from tests.audit.broken import QuietGaussian


def quiet():
    def refine(made):
        honest = made.plan.live_mechanism
        broken = replace(honest, privatizer=QuietGaussian(honest=honest.privatizer, part=0.1))
        return replace(made, plan=replace(made.plan, mechanism=broken))

    options = dict(rounds=2, cohort=30, noise_multiplier=1.0, delta=0.001)
    return replace(fedpriv.experiment("dp-fedavg-tags", **options), name="quiet", refine=refine)
"""


def test_a_right_experiment_is_consistent(tiny_corpus, tmp_path):
    plot = tmp_path / "audit.svg"
    result = run(
        "audit", "dp-fedavg-tags", "--corpus", tiny_corpus.directory, *SETTING,
        "--trials", 1_000, "--out", plot,
    )  # fmt: skip
    assert "consistent" in result.stdout and "simulated ε" in result.stdout
    assert b"Audit of dp-fedavg-tags: consistent" in plot.read_bytes()
    again = tmp_path / "again.svg"
    run(
        "audit", "dp-fedavg-tags", "--corpus", tiny_corpus.directory, *SETTING,
        "--trials", 1_000, "--out", again,
    )  # fmt: skip
    assert again.read_bytes() == plot.read_bytes()


def test_json_names_delta_relation_unit_accountant_and_mode(tiny_corpus):
    result = run(
        "audit", "dp-fedavg-tags", "--corpus", tiny_corpus.directory, *SETTING,
        "--trials", 200, "--secure", "--json",
    )  # fmt: skip
    stated = json.loads(result.stdout)["stated"]
    assert {"delta", "relation", "unit", "accountant", "mode"} < set(stated)
    assert stated["mode"] == "secure"


def test_a_broken_experiment_is_refuted_and_exits_with_1(tiny_corpus, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(OWN, "utf-8")
    plot = tmp_path / "audit.svg"
    arguments = ["audit", f"{own}:quiet", "--corpus", str(tiny_corpus.directory)]
    result = CliRunner().invoke(
        cli.app, [*arguments, "--trials", "1000", "--out", str(plot)], catch_exceptions=False
    )
    assert result.exit_code == 1, result.output
    assert "REFUTED" in result.stdout
    assert b"Audit of quiet: refuted" in plot.read_bytes()


def test_what_cannot_be_audited_is_one_line(monkeypatch, capsys, tiny_corpus, tmp_path):
    corpus = ("--corpus", tiny_corpus.directory)
    assert main(monkeypatch, "audit", "fedavg-tags", *corpus) == 2
    assert "no ε to audit" in capsys.readouterr().err
    taken = tmp_path / "taken.svg"
    taken.touch()
    assert main(monkeypatch, "audit", "dp-fedavg-tags", *corpus, "--out", taken) == 2
    assert "is there already" in capsys.readouterr().err
    assert main(monkeypatch, "audit", "dp-fedavg-tags", *corpus, "--secure", "--seed", 1) == 2
    assert "takes no seed" in capsys.readouterr().err


@pytest.mark.slow
def test_membership_from_the_command_line(tiny_corpus, tmp_path):
    folder, plot = tmp_path / "run", tmp_path / "membership.svg"
    run(
        "run", "dp-fedavg-tags", "--corpus", tiny_corpus.directory, *SETTING, "--users", 30,
        "--out", folder, "--json",
    )  # fmt: skip
    said = run("attack", "membership", folder, "--out", plot).stdout
    assert "simulations only" in said and "ε allows" in said and plot.is_file()
    document = json.loads(run("attack", "membership", folder, "--json").stdout)
    assert document["members"]["number"] == 30 and document["epsilon"]["mode"] == "simulation"
