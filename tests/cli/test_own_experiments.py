"""`fedpriv run` with a file of one's own: its errors are its own, and no option is ignored."""

import json
import re
import sys

import pytest

from fedpriv.api.running import resume
from tests.harness import command_line

GOOD = """
import numpy as np
from torch import nn
from fedpriv.experiments import FederatedExperiment, GaussianNoise
from fedpriv.tasks.module_task import ModuleTask


def task(experiment):
    users = {f"u{n}": (np.full((4, 3), (n + 1) / 9), np.arange(4) % 2) for n in range(10)}
    return ModuleTask(
        name="own", module=lambda: nn.Linear(3, 2), loss=nn.functional.cross_entropy, users=users,
        public=users["u0"],
    )


def experiment():
    return FederatedExperiment(
        name="own", description="Mine.",
        noise=GaussianNoise(multiplier=1.0), cohort=5.0,
        delta=0.01, rounds=3,
        eval_every=1, task=task,
    )
"""


DECLARED = (
    GOOD.replace("import numpy", "from dataclasses import dataclass\nimport numpy")
    .replace(
        "def task(experiment):",
        "@dataclass(frozen=True)\n"
        "class Mine:\n"
        "  users: int | None = None\n"
        "  roster: str | None = None\n"
        "  def __call__(self, experiment, corpus):",
    )
    .replace("task=task", "task=Mine()")
)


@pytest.fixture
def fedpriv(tmp_path, monkeypatch):
    """Run the installed command's entry point beside a file `mine.py`: (status, out, err)."""

    def call(source, *arguments, name="mine:experiment"):
        (tmp_path / "mine.py").write_text(source, "utf-8")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        sys.modules.pop("mine", None)
        status, out, err = command_line.fedpriv("run", name, *arguments)
        return status, out, re.sub(r"\Apreparing .*\n", "", err)  # before the task is tried

    yield call
    sys.modules.pop("mine", None)


OWN_ERRORS = {
    "syntax": ("def experiment(:\n", 1, "SyntaxError: "),
    "import": ("import no_such_package_anywhere\n", 1, "ModuleNotFoundError: "),
    "top level": ("value = {}['gone']\n", 1, "KeyError: 'gone'"),
    "in the function": ("def experiment():\n    return 1 / 0\n", 2, "ZeroDivisionError"),
    "value error": ("def experiment():\n    return int('x')\n", 2, "ValueError: invalid literal"),
    "missing file": ("def experiment():\n    open('/no/such/file')\n", 2, "FileNotFoundError: "),
    "wrong argument": (
        "from fedpriv.experiments import FederatedExperiment, GaussianNoise\n"
        "def experiment():\n    return FederatedExperiment(nam='x')\n",
        3,
        "TypeError: ",
    ),
    "in the task": (
        GOOD.replace("    users = {", "    users = 1 / 0, {"),
        9,
        "ZeroDivisionError",
    ),
}


@pytest.mark.parametrize(("source", "line", "said"), OWN_ERRORS.values(), ids=OWN_ERRORS)
def test_the_files_user_traceback_is_shown_and_none_of_ours(fedpriv, tmp_path, source, line, said):
    status, out, err = fedpriv(source, "--out", tmp_path / "run")
    assert (status, out) == (1, "")
    assert f'mine.py", line {line}' in err and said in err
    assert "while " in err.splitlines()[-1]
    for ours in ("/fedpriv/", "click", "typer", "importlib"):
        assert ours not in err
    assert not (tmp_path / "run").exists()


def test_a_loss_that_fails_is_shown_from_the_file_on(fedpriv, tmp_path):
    source = GOOD.replace("loss=nn.functional.cross_entropy", "loss=lambda o, t: o.missing()")
    status, _, err = fedpriv(source, "--out", tmp_path / "run")
    assert status == 1
    lines = err.splitlines()
    assert lines[0] == "Traceback (most recent call last):" and "mine.py" in lines[1]
    assert "has no attribute 'missing'" in err and "before anything was charged" in lines[-1]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (GOOD.replace("users=users", "users={}"), ""),
        (GOOD.replace("nn.Linear(3, 2)", "nn.BatchNorm1d(3)"), "nn.GroupNorm"),
        (GOOD.replace("rounds=3", "rounds=0"), "rounds 0"),
        (GOOD.replace("def experiment", "def other"), "'experiment'"),
        (GOOD.replace("return FederatedExperiment", "return dict"), "dict"),
    ],
)
def test_what_we_refuse_is_one_line(fedpriv, tmp_path, source, said):
    status, _, err = fedpriv(source, "--out", tmp_path / "run")
    assert status == 2
    assert err.startswith("error: ") and err.count("\n") == 1 and said in err


@pytest.mark.slow
def test_a_file_is_named_by_its_path_and_resumed_from_anywhere(fedpriv, tmp_path, monkeypatch):
    """Also by one that is relative to the working directory."""
    (tmp_path / "other").mkdir()
    path = tmp_path / "other" / "far.py"
    path.write_text("from near import GOOD\n" + GOOD, "utf-8")
    (tmp_path / "other" / "near.py").write_text("GOOD = 1\n", "utf-8")
    run = tmp_path / "run"
    for arguments in (["--out", run], ["--resume", run]):
        status, out, err = fedpriv("", *arguments, name=f"{path}:experiment")
        assert status == 0 and f"{run}/report.html" in out, err
    assert fedpriv("", "--out", tmp_path / "typed", name="other/far.py:experiment")[0] == 0
    shown = json.loads((tmp_path / "typed" / "experiment.json").read_text("utf-8"))["reference"]
    assert shown == f"{path}:experiment"
    monkeypatch.chdir("/")
    again = resume(tmp_path / "typed", experiment=shown, progress=False)
    assert again.summary["rounds"] == 3


@pytest.mark.parametrize("name", ["mine.py", "gone.py:experiment"])
def test_a_file_without_a_function_or_that_is_missing_is_one_line(fedpriv, name):
    status, _, err = fedpriv(GOOD, name=name)
    assert status == 2 and err.count("\n") == 1 and name.partition(":")[0] in err


@pytest.mark.slow
def test_a_target_that_is_reached_early_is_said_before_and_after(fedpriv, tmp_path):
    arguments = ["--target-epsilon", "1.5", "--noise-multiplier", "2", "--rounds", "30"]
    status, out, err = fedpriv(GOOD, *arguments, "--out", tmp_path / "run")
    assert status == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    done = summary["rounds"]
    assert 0 < done < 30 == summary["rounds_planned"]
    assert summary["stopped_early"] == "target-epsilon"
    assert re.search(rf"target ε of 1\.5 .*\b{done} of the 30\b", err)
    assert f"{done} of 30 rounds" in out and "target ε" in out
    assert f"{done} of 30 rounds" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.slow
def test_an_experiment_itself_ends_with_all_of_its_rounds(fedpriv, tmp_path):
    source = f"{GOOD}\n\nmade = experiment()\n"
    _, out, err = fedpriv(source, "--out", tmp_path / "run", name="mine.py:made")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["rounds"], summary["stopped_early"]) == (3, None)
    assert "3 of 3 rounds" in out and "target ε" not in out + err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "guarantee"),
    [
        ([], "(user-level, add-remove, PLD, simulation) after 3 rounds"),
        (["--noise", "none"], "no privacy (ε = ∞)"),
        (["--noise-multiplier", "0.2"], "no meaningful protection"),
        (["--delta", "0.1"], "1/n"),
    ],
)
def test_what_is_trained_and_guaranteed_heads_the_run(fedpriv, tmp_path, arguments, guarantee):
    _, _, err = fedpriv(GOOD, *arguments, "--out", tmp_path / "run")
    title, trained, *plan = err.partition("own: round")[0].splitlines()
    assert title == "own: Mine." and " 8 params on corpus own, 10 users" in trained
    assert guarantee in " ".join(plan)


@pytest.mark.parametrize(
    ("source", "option", "said"),
    [
        (GOOD, ["--users", "4"], "users"),
        (GOOD, ["--roster", "some"], "roster"),
        (GOOD, ["--corpus", "CORPUS"], "tiny"),
        (GOOD, ["-s", "users=4"], "users"),
        (DECLARED, ["--users", "4"], "4"),
        (DECLARED, ["--roster", "some"], "some"),
    ],
)
def test_what_an_own_task_does_not_follow_is_refused(
    fedpriv, tmp_path, tiny_corpus, source, option, said
):
    """Also where the task declares the option."""
    option = [str(tiny_corpus.directory) if o == "CORPUS" else o for o in option]
    status, _, err = fedpriv(source, *option, "--out", tmp_path / "run")
    assert status == 2 and said in err and err.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_task_that_declares_and_follows_them_gets_them(fedpriv, tmp_path, tiny_corpus):
    source = DECLARED.replace("range(10)", "range(self.users or 10)")
    assert fedpriv(source, "--users", "7", "--out", tmp_path / "seven")[0] == 0
    plan = json.loads((tmp_path / "seven" / "experiment.json").read_text())["plan"]
    assert plan["mechanism"]["recorded"]["num_users"] == 7
    reads = DECLARED.replace("range(10)", "corpus.view(self.roster).roster[:9]").replace(
        "(n + 1) / 9", "len(n) / 9"
    )
    reads = reads.replace('{f"u{n}": ', "{n: ").replace('users["u0"]', "None")
    given = ["--corpus", tiny_corpus.directory, "--out", tmp_path / "nine"]
    status, _, err = fedpriv(reads, *given)
    assert status == 0, err
    document = json.loads((tmp_path / "nine" / "experiment.json").read_text())
    assert document["plan"]["mechanism"]["recorded"]["num_users"] == 9
    assert document["corpus"]["path"] == str(tiny_corpus.directory.resolve())
