"""Flags that the parts declare: typed in an option's type, and passed on."""

import pytest
import typer

from fedpriv.cli.listing import with_flags
from tests.harness.command_line import CliRunner


def called(names, *arguments):
    """Return what a command with the flags was given, or the error that was shown."""
    seen = []
    app = typer.Typer()

    @app.command()
    @with_flags(names)
    def command(*, flags: dict, out: str = "here") -> None:
        seen.append((flags, out))

    found = CliRunner().invoke(app, list(arguments), terminal_width=200)
    return seen[0] if seen else found.output


def test_a_command_is_given_what_was_typed_in_the_options_type():
    names = ("ema-decay", "rounds", "bound", "exact-sum")
    given = called(names, "--ema-decay", "0.5", "--rounds", "3", "--bound", "none", "--exact-sum")
    assert given == (
        {"ema-decay": 0.5, "rounds": 3, "bound": "none", "exact-sum": True}, "here",
    )  # fmt: skip
    assert called(names) == ({}, "here")
    assert called(names, "--rounds", "0", "--out", "x") == ({"rounds": 0}, "x")


def test_a_value_of_another_type_is_refused_and_an_unknown_option_at_once():
    assert "'many' is not a valid integer" in called(("rounds",), "--rounds", "many")
    with pytest.raises(KeyError, match="roundz"):
        with_flags(("roundz",))


def test_none_is_typed_where_an_option_takes_it_and_refused_elsewhere():
    assert called(("delta",), "--delta", "none") == ({"delta": "none"}, "here")
    assert called(("delta",), "--delta", "1e-5") == ({"delta": 1e-5}, "here")
    assert "'nothing'" in called(("delta",), "--delta", "nothing")
    assert "'none' is not a valid integer" in called(("rounds",), "--rounds", "none")
    assert "--delta FLOAT" in " ".join(called(("delta",), "--help").split())
