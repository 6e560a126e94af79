"""Writes the pages of options and of commands, and code of examples into the pages that show it.

`make docs` writes the first two, which are not committed; `make options` the others too, which a
test compares with the examples.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

import click

from fedpriv import cli
from fedpriv.experiments.experiment import classes
from fedpriv.experiments.options import Entry, Option, entries
from fedpriv.experiments.ready_made.image_users import ImagesByUser
from fedpriv.experiments.ready_made.natural_users import FemnistTask, ShakespeareTask
from fedpriv.experiments.tasks import NextWordsTask, TagPredictionTask

_INTRODUCTION = """# Options

An experiment is a frozen dataclass of parts, each a frozen dataclass of options. The name of an
option is its path: `noise.multiplier` on the command line (`-s NAME=VALUE`), in TOML, in a run
folder and in Python, where it is the attribute. The kind of a part is set by the path of its
place, `-s noise=banded`, in TOML `noise.kind = "banded"`. Any ending of a path that is unambiguous
will do, and `-`, `_` and `.` are alike: `target-epsilon`. An option exists only where its part is
chosen; elsewhere it is refused with the part's name. So is a value that has no effect under the
others, such as `pair-weight` without pairs or a restart after the last round. `fedpriv list
EXPERIMENT` shows those of one experiment with their values."""


_KINDS = {
    "text": "text",
    "integer": "a whole number",
    "float": "a number",
    "read": "a number",
    "path": "a path",
    "file": "a path",
    "directory": "a path",
}
_COMMANDS = """# Commands

What `fedpriv COMMAND --help` prints, for every command ([exit codes](exit-codes.md))."""


def tables() -> str:
    """Return the page of all options, class by class, in Markdown."""
    lines = [_INTRODUCTION]
    for (unit, method), made in classes().items():
        summary = (made.__doc__ or "").partition("\n")[0]
        lines += [
            "",
            f"## `{made.__name__}`",
            "",
            f'{summary} (`unit="{unit}"`, method `{method}`)',
        ]
        lines += ["", *_table(entries(made))]
    for task in (TagPredictionTask, NextWordsTask, ImagesByUser, FemnistTask, ShakespeareTask):
        summary = (task.__doc__ or "").partition("\n")[0]
        lines += [
            "",
            f"## `{task.__name__}`",
            "",
            summary,
            "",
            *_table(entries(task, prefix="task.")),
        ]
    return "\n".join([*lines, ""])


def _table(known: tuple[Entry, ...]) -> Iterator[str]:
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    for entry in known:
        kind = f"{entry.within[-1][0]} `{entry.within[-1][1]}`" if entry.within else ""
        row = (entry.path, _written(entry.default), entry.takes, entry.help)
        rows.setdefault(row, []).append(kind)
    yield "| option | with | default | takes | |"
    yield "|---|---|---|---|---|"
    for (path, default, takes, summary), kinds in rows.items():
        cells = [f"`{path}`", ", ".join(dict.fromkeys(kinds)), default, takes, summary]
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _written(value: Option) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else f"{value}"


def commands() -> str:
    """Return the page of all commands, with their options, in Markdown."""
    lines = [_COMMANDS]
    for name, command in _tree("fedpriv", cli.loaded()):
        lines += ["", f"## `{name}`", "", cleandoc(command.help or ""), ""]
        lines += _parameters(command)
    return "\n".join([*lines, ""])


def _tree(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield name, command
        return
    for part, found in command.commands.items():
        yield from _tree(f"{name} {part}", found)


def _parameters(command: click.Command) -> Iterator[str]:
    yield "| | takes | default | |"
    yield "|---|---|---|---|"
    for given in command.params:
        if getattr(given, "hidden", False) or "--help" in given.opts:
            continue
        option = isinstance(given, click.Option)
        name = (
            ", ".join([*given.opts, *given.secondary_opts]) if option else f"{given.name}".upper()
        )
        takes = " or ".join(getattr(given.type, "choices", ())) or _KINDS.get(given.type.name, "")
        if option:
            takes = "" if given.is_flag else takes + ", repeatable" * given.multiple
        shown = type(given.default) in (str, int, float)
        cells = (
            f"`{name}`",
            takes,
            f"{given.default}" if shown else "",
            getattr(given, "help", ""),
        )
        texts = (" ".join((cell or "").split()).replace("|", "\\|") for cell in cells)
        yield f"| {' | '.join(texts)} |"


_SHOWN = re.compile(r"<!-- (examples/\S+)(?: (\S+))? -->\n```\w+\n.*?\n```\n", re.DOTALL)


def with_code(page: str) -> str:
    """Return a page with the code of examples, which GitHub would not include, as blocks.

    Below `<!-- examples/FILE -->` stands the file, below `<!-- examples/FILE OTHER -->` the diff
    from it to another one of its folder, without their first lines.
    """

    def block(found: re.Match[str]) -> str:
        file = Path(__file__).parents[1] / found[1]
        text, kind = file.read_text("utf-8"), file.suffix[1:]
        if found[2] is not None:
            before, after = (
                path.read_text("utf-8").splitlines()[2:]
                for path in (file, file.with_name(found[2]))
            )
            lines = difflib.unified_diff(before, after, n=len(before), lineterm="")
            text, kind = "".join(f"{line.rstrip()}\n" for line in [*lines][3:]), "diff"
        return f"{found[0].partition('```')[0]}```{kind}\n{text}```\n"

    return _SHOWN.sub(block, page)


def write_generated() -> None:
    """Write the pages that are not committed."""
    Path(__file__).with_name("options.md").write_text(tables(), "utf-8")
    Path(__file__).parent.joinpath("reference", "commands.md").write_text(commands(), "utf-8")


if __name__ == "__main__":
    for shown in Path(__file__).parent.rglob("*.md"):
        shown.write_text(with_code(shown.read_text("utf-8")), "utf-8")
    write_generated()
