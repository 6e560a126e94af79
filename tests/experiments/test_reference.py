"""Options as they are declared, listed, completed and written elsewhere."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedpriv.cli.listing import complete_experiments, complete_settings
from fedpriv.experiments.experiment import classes
from fedpriv.experiments.load import find_experiments, load_experiment
from fedpriv.experiments.options import entries
from tests.cli.typed import figures

ROOT = Path(__file__).parents[2]
WRITER = runpy.run_path(str(ROOT / "docs" / "write_options.py"))
ENTRIES = [
    pytest.param(entry, id=f"{made.__name__} {entry.path} {dict(entry.within)}")
    for made in classes().values()
    for entry in entries(made)
]


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_option_has_one_line_of_help_and_a_default_that_it_takes(entry):
    assert entry.help.endswith(".") and "\n" not in entry.help
    assert entry.coerce(entry.path, entry.default) == entry.default and entry.takes


def test_generated_pages_have_every_option_and_command():
    options, commands = WRITER["tables"](), WRITER["commands"]()
    assert all(f"| `{entry.values[0].path}` |" in options for entry in ENTRIES)
    assert "## `fedpriv run`" in commands and "`--target-epsilon`" in commands


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(find_experiments()))
def test_every_option_that_exists_is_listed_with_its_value(name):
    experiment = load_experiment(name)
    told = figures("list", name)
    assert (told["name"], told["unit"]) == (name, experiment.unit)
    automatic = dict.fromkeys(experiment.automatic, "automatic")
    values = {line["name"]: line["value"] for line in told["options"]}
    assert values == experiment.options() | automatic
    assert all(line["help"] and line["takes"] and line["part"] for line in told["options"])


class TestCompletion:
    def settings(self, experiment, incomplete):
        context = SimpleNamespace(params={"experiment": experiment})
        return [text for text, _ in complete_settings(context, incomplete)]

    def test_of_experiments(self):
        names = [name for name, _ in complete_experiments("dp-fed")]
        assert names == ["dp-fedadam-tags", "dp-fedavg-tags", "dp-fedavg-words"]
        assert {name for name, _ in complete_experiments("")} == set(find_experiments())

    def test_of_options_that_the_experiment_has(self):
        assert self.settings("adadps-tags", "precond") == [
            "precondition=", "precondition.side_information=",
            "precondition.side_information.preconditioner_gain=",
            "precondition.side_information.preconditioner_top=",
        ]  # fmt: skip
        assert self.settings("dp-fedavg-tags", "precond") == ["precondition="]

    def test_of_their_choices(self):
        assert self.settings("dp-fedavg-tags", "bound=n") == ["bound=normalise", "bound=none"]
        assert self.settings("dp-fedavg-tags", "rounds=") == []
        assert self.settings("dp-fedavg-tags", "nothing=") == []

    def test_nobody_is_told_errors_in_the_middle_of_a_word(self):
        assert self.settings(None, "b") == self.settings("no-such", "b") == []
