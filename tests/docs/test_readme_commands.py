"""The README's commands: each could be typed so, and the quick ones are run on a tiny corpus."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path

import pytest

from fedpriv import cli
from fedpriv.experiments.load import load_experiment
from fedpriv.experiments.tasks import TagPredictionTask
from tests.command_line import CliRunner
from tests.docs.command_checks import ROOT, Refused, check
from tests.docs.shell_blocks import Command, commands

COMMANDS = commands((ROOT / "README.md").read_text("utf-8"))
#: A run of the README takes minutes: here it is of this size, whatever it says.
SMALL = {"--rounds": "2", "--cohort": "6"}
QUICK = (
    *("list", "account", "calibrate", "verify", "report", "compare", "export", "predict"),
    *("data list", "data info", "--version", "--help"),
)


def is_quick(command: Command) -> bool:
    """Whether it takes seconds on a tiny corpus; a whole reproduction does not, nor starting Ray.

    A run must be of users of a corpus: other experiments bring data of their own.
    """
    program, *words = command.words or ("",)
    if program != "fedpriv":
        return False
    if words[:1] == ["run"]:
        return _is_quick_run(words[1:])
    name = " ".join(words[: 2 if words[:1] == ["data"] else 1])
    return name in QUICK or words in (["reproduce"], [])


def _is_quick_run(words: list[str]) -> bool:
    if "ray" in words or "--backend=ray" in words:
        return False
    if "--resume" in words:
        return True
    try:
        experiment = load_experiment(words[0])
    except (ValueError, IndexError):
        return False
    # A tiny corpus has words and no rows of an encoder.
    return experiment.unit == "user" and type(experiment.task) is TagPredictionTask


def shrunk(command: Command) -> list[str]:
    """Return its words in a size that takes a second, with what the shell would expand."""
    _, *words = command.words
    words = [item for word in words for item in (sorted(glob.glob(word)) or [word])]
    if words[:1] == ["run"] and "--resume" not in words:
        words = [re.sub(r"^(rounds|cohort)=.*", r"\g<1>=2", word) for word in words]
        words += [item for pair in SMALL.items() for item in pair]
    return words


class Workplace:
    """A folder in which the README's quick commands are run in their order, each once."""

    def __init__(self, folder: Path, corpus: Path) -> None:
        self._folder, self._corpus = folder, corpus
        self._results: list[object] = []

    def result(self, place: int):
        """Return the result of a command, after those before it."""
        quick = [command for command in COMMANDS if is_quick(command)]
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self._folder)
            patch.setenv("FEDPRIV_DATA", str(self._corpus))
            patch.setenv("FEDPRIV_CACHE", str(self._folder / "cache"))
            for command in quick[len(self._results) : place + 1]:
                self._results.append(CliRunner().invoke(cli.app, shrunk(command)))
        return self._results[place]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory, tiny_corpus):
    return Workplace(tmp_path_factory.mktemp("readme"), tiny_corpus.directory)


def test_there_are_commands():
    assert any(command.words[:2] == ("fedpriv", "run") for command in COMMANDS)
    assert any(command.words[:1] == ("make",) for command in COMMANDS)


def test_it_could_be_typed(subtests):
    for command in COMMANDS:
        with subtests.test(command=command):
            check(command)


_RUN = [command for command in COMMANDS if is_quick(command)]


@pytest.mark.parametrize("place", range(len(_RUN)), ids=[str(command) for command in _RUN])
def test_it_runs(place, workplace):
    result = workplace.result(place)
    assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"
    assert result.output


_RAY = [
    command for command in COMMANDS if "ray" in command.words and command.words[1:2] == ("run",)
]


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("command", _RAY, ids=str)
@pytest.mark.usefixtures("no_ray")
def test_it_runs_in_workers(command, tmp_path, tiny_corpus, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDPRIV_DATA", str(tiny_corpus.directory))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    result = CliRunner().invoke(cli.app, shrunk(command))
    assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"


WRONG = {
    "fedpriv walk": "'walk' is no command",
    "fedpriv data walk": "'walk' is no command",
    "fedpriv run adadps-tags --no-such 1": "No such option",
    "fedpriv run adadps-tag": "did you mean 'adadps-tags'",
    "fedpriv run adadps-tags -s bnd=clip": "did you mean 'bound'",
    "fedpriv run adadps-tags --rounds many": "many",
    "fedpriv run adadps-tags --rounds 0": "at least 1",
    "fedpriv list adadps-tag": "adadps-tags",
    "fedpriv export run": "--to",
    "fedpriv reproduce nothing": "not known",
    "fedpriv data fetch nothing": "cannot be fetched",
    "fedpriv data info nothing": "no name of a corpus",
    "python -m fedpriv walk": "'walk' is no command",
    "python -m simulations.nothing": "no module",
    "python -m simulations.reproduction.runs --no-such": "no option --no-such",
    "pip install 'fedpriv[nothing]'": "no extra",
    "make nothing": "no target",
    "nothing --at all": "nobody knows",
    "FEDPRIV_NOTHING=1 fedpriv list": "never reads FEDPRIV_NOTHING",
    "export FEDPRIV_NOTHING=1": "never reads FEDPRIV_NOTHING",
    "flwr run . --no-such": "No such option",
    "flwr walk": "'walk' is no command",
    "flwr run . --run-config 'nothing=1'": "nothing",
    "flower-superlink --no-such": "no option --no-such",
    "flower-supernode --no-such=1": "no option --no-such",
    "flower-nothing": "not installed",
}


@pytest.mark.parametrize(("line", "said"), WRONG.items(), ids=WRONG)
def test_what_is_wrong_is_found(line, said):
    (command,) = commands(f"```bash\n{line}\n```\n")
    with pytest.raises(Refused, match=re.escape(said)):
        check(command)
