"""`fedpriv audit` and `fedpriv attack membership` as a user types them; exit 1 where refuted.

A thousand canaries; the seed is fixed, and a right mechanism is refuted once in a thousand audits.
"""

import json

import pytest

from tests.cli.typed import run
from tests.harness.command_line import fedpriv

SETTING = ("--rounds", "2", "--cohort", "30", "--noise-multiplier", "1", "--delta", "0.001")

OWN = """
from dataclasses import replace
import fedpriv
from fedpriv.mechanisms.gaussian import Gaussian
from tests.audit.broken import QuietGaussian
from tests.harness.other_components import with_components


def broken(made):
    honest = made.plan.live_mechanism
    quiet = replace(honest, privatizer=QuietGaussian(honest=honest.privatizer, part=0.1))
    return replace(made, plan=replace(made.plan, mechanism=quiet))


def quiet():
    options = dict(rounds=2, cohort=30, noise_multiplier=1.0, delta=0.001)
    plain = fedpriv.experiment("dp-fedavg-tags", **options)
    return with_components(plain, broken, name="quiet")
"""


def test_a_right_experiment_is_consistent(tiny_corpus, tmp_path):
    plot = tmp_path / "audit.svg"
    asked = ("audit", "dp-fedavg-tags", "--corpus", tiny_corpus.directory, *SETTING)
    result = run(*asked, "--trials", 1_000, "--out", plot)
    assert "consistent" in result.stdout and "simulated ε" in result.stdout
    assert b"Audit of dp-fedavg-tags: consistent" in plot.read_bytes()
    again = tmp_path / "again.svg"
    run(*asked, "--trials", 1_000, "--out", again)
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
    arguments = ["audit", f"{own}:quiet", "--corpus", tiny_corpus.directory]
    result = fedpriv(*arguments, "--trials", 1_000, "--out", plot)
    assert result.exit_code == 1, result.output
    assert "REFUTED" in result.stdout
    assert b"Audit of quiet: refuted" in plot.read_bytes()


def test_what_cannot_be_audited_is_one_line(tiny_corpus, tmp_path):
    corpus, taken = ("--corpus", tiny_corpus.directory), tmp_path / "taken.svg"
    taken.touch()
    for arguments, said in (
        (("fedavg-tags", *corpus), "no ε to audit"),
        (("dp-fedavg-tags", *corpus, "--out", taken), "is there already"),
        (("dp-fedavg-tags", *corpus, "--secure", "--seed", 1), "takes no seed"),
    ):
        done = fedpriv("audit", *arguments)
        assert done.exit_code == 2 and said in done.stderr


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
