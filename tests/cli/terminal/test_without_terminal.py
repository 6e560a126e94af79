"""Commands without a terminal, as on a cluster or in a pipe: what they load, say and cut."""

import io

import pytest
from rich.console import Console
from rich.table import Table

from fedpriv.cli import output
from fedpriv.cli.output import counting
from fedpriv.experiments.load import find_experiments, load_experiment
from tests.cli.typed import run


@pytest.fixture(params=["pipe", "narrow pipe", "narrow terminal"])
def printed(request, monkeypatch):
    """What is printed to something without a width, or without enough."""
    to = io.StringIO()
    terminal = request.param == "narrow terminal"
    width = 80 if request.param == "pipe" else 20
    console = Console(file=to, width=width, force_terminal=terminal, color_system=None)
    monkeypatch.setattr(output, "console", console)
    return to.getvalue


def test_every_name_and_every_option_is_whole(printed):
    run("list")
    run("list", "adadps-tags")
    options = {entry.path for entry in load_experiment("adadps-tags").entries()}
    assert {*find_experiments()} | options <= {*printed().split()}
    assert "…" not in printed()


def test_rows_of_a_pipe_are_lines(monkeypatch):
    to = io.StringIO()
    monkeypatch.setattr(output, "console", Console(file=to, width=80, color_system=None))
    table = Table("name", "what it is", box=None)
    table.add_row("a-long-name-of-a-thing", "word " * 60 + "end")
    output.print_table(table)
    _head, row = to.getvalue().splitlines()
    assert row.split()[-1] == "end"


class TestProgress:
    @pytest.fixture(autouse=True)
    def errors(self, monkeypatch):
        self.said = io.StringIO()
        errors = Console(file=self.said, width=40, color_system=None)
        monkeypatch.setattr(output, "errors", errors)

    def test_of_data(self):
        with counting("importing a-file-with-a-rather-long-name.xml", quiet=False) as tell:
            for done in range(101):
                tell(done, 100)
        assert self.said.getvalue().splitlines() == [
            "importing a-file-with-a-rather-long-name.xml: 0%",
            "importing a-file-with-a-rather-long-name.xml: 100%",
        ]

    def test_there_is_none_where_nothing_is_done_or_json_is_wanted(self):
        with counting("importing", quiet=False):
            pass
        with counting("importing", quiet=True) as tell:
            tell(1, 2)
        assert self.said.getvalue() == ""
