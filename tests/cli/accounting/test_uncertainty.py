"""`fedpriv uncertainty`, as typed."""

import pytest

import fedpriv as fp
from tests.cli.typed import figures
from tests.harness.command_line import fedpriv

PLAN = ("--learning-rate", "0.5", "--strong-convexity", "0.1", "--smoothness", "1")


@pytest.fixture(scope="module")
def folder(tiny_corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("uncertain") / "run"
    fp.run("dp-fedavg-tags", corpus=str(tiny_corpus.directory), out=out, rounds=6,
           keep_checkpoints=None, noise_multiplier=1.0, cohort=6.0, delta=1e-3,
           aggregate="upa")  # fmt: skip
    return out


def test_a_run_s_table_says_what_it_covers(folder):
    done = fedpriv("uncertainty", folder, "--k", "3", "--k", "5", "--k", "20")
    text = " ".join(done.stdout.split())
    assert done.exit_code == 0
    for words in ("4 to 6", "2 to 6", "an estimate", "SYNTHETIC", "0.2 times"):
        assert words in text, words


def test_as_json(folder):
    found = figures("uncertainty", folder)
    assert [row["k"] for row in found["k"]] == [3, 5, 10, 20]
    assert found["k"][1]["rounds"] == [2, 3, 4, 5, 6] and found["k"][2]["rounds"] == []


def test_a_plan_of_burn_in_and_spacing():
    found = figures("uncertainty", "--plan", *PLAN, "--k", "5")
    assert found["contraction"] == pytest.approx(0.95)
    (row,) = found["k"]
    assert (row["burn_in"], row["spacing"], row["rounds"]) == (90, 72, 450)
    done = fedpriv("uncertainty", "--plan", *PLAN)
    assert done.exit_code == 0 and "= 0.95" in " ".join(done.stdout.split())


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
