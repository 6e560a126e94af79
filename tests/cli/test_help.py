"""`fedpriv --help` shows every command's own help, and loads none of them."""

import inspect
import json
import subprocess
import sys

import pytest
import typer
import typer.main

from fedpriv import __version__, cli

COMMANDS = typer.main.get_command(cli.app).commands
LOADED = cli.loaded().commands
HEAVY = {"torch", "numpy", "scipy", "numba", "pandas", "matplotlib", "flwr", "ray", "requests"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_has_the_help_of_each(name):
    listed, itself = COMMANDS[name].help, LOADED[name]
    first, *_ = inspect.cleandoc(itself.help).split("\n\n")
    assert listed == first.replace("\n", " ") and itself.name == name


def test_a_group_has_the_same_commands_however_often_it_is_called():
    first, second = (list(COMMANDS["data"].load().commands) for _ in range(2))
    assert first == second and {"import", "key"} <= set(first)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], [], ["run", "--help"]])
def test_no_library_is_loaded_for_it(arguments):
    code = (
        "import json, sys\n"
        f"sys.argv = ['fedpriv', *{arguments!r}]\n"
        "from fedpriv.__main__ import main\n"
        "try:\n    main()\n"
        "finally:\n    print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    loaded = set(json.loads(next(line for line in done.stderr.splitlines() if line[0] == "[")))
    may = {"numpy"} if "run" in arguments else set()  # of the experiments whose options it shows
    assert "typer" in loaded and loaded & HEAVY <= may
    assert arguments != ["--version"] or done.stdout == f"fedpriv {__version__}\n"
    ours = [name for name in loaded if name.startswith(("fedpriv.api", "fedpriv.datasets"))]
    assert may or not ours


def test_options_whose_default_is_empty_may_be_given_so():
    def options(command):
        for one in getattr(command, "commands", {}).values():
            yield from options(one)
        yield from command.params

    found = {name for one in options(cli.loaded()) if one.default == "" for name in one.opts}
    assert found | {"--text"} == {*cli.MAY_BE_EMPTY} >= {"--title", "--table"}
