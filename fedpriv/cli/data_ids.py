"""`fedpriv data key`, `ids` and `roster`: pseudonymous ids of a node's local users."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedpriv.cli.output import errors, fail, print_json, print_line
from fedpriv.datasets.local_data import MissingColumnError, NodeData, Table, open_source
from fedpriv.datasets.user_ids import read_key, read_roster, user_id, write_key
from fedpriv.deploy.checks import local_users_of
from fedpriv.output_paths import writing_to

_MOST_SHOWN = 20


def register(app: typer.Typer) -> None:
    """Add the commands to `fedpriv data`."""
    app.command()(key)
    app.command()(ids)
    app.command()(roster)


def key(file: Annotated[Path, typer.Argument(help="A new file, of mode 0600.")]) -> None:
    """Make the key of people's ids: one for all nodes, and never the server's."""
    write_key(file)
    print_line(
        f"{file}: copy it to every node by a way that you trust, and keep it; with another key "
        "every id is another"
    )


def ids(
    data: Annotated[
        Path, typer.Argument(help="A folder of CSV files (one a person), a CSV or SQLite file.")
    ],
    key: Annotated[Path, typer.Option(help="The file of `fedpriv data key`.")],
    experiment: Annotated[
        str | None,
        typer.Option(help="Also read everybody as this experiment's task does, and name bad rows."),
    ] = None,
    user: Annotated[
        str, typer.Option(help="The column of people's names, where no experiment says it.")
    ] = "user",
    table: Annotated[str, typer.Option(help="An SQLite file's table, likewise.")] = "",
    line_breaks: Annotated[
        bool,
        typer.Option("--line-breaks", help="Quoted values of CSV have line breaks, likewise."),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="A file for the ids.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the ids of a node's own people, sorted, one a line: its part of a roster."""
    problems: Iterable[str]
    if experiment is None:
        rows, secret = (
            Table(columns={}, user=user, name=table, line_breaks=line_breaks),
            read_key(key),
        )
        try:
            source = open_source(data, rows)
        except MissingColumnError as error:
            raise ValueError(error.listing()) from None
        found = sorted({user_id(secret, name) for name in source.rows})
        problems = source.problems
    else:
        users = local_users_of(experiment, NodeData(data.resolve(), key.resolve()))
        found, problems = sorted(users), users.problems()
    if not found:
        fail(f"{data} holds no one's data; give the files of this node's people")
    bad = list(problems)
    if out is not None:
        _write(out, _lines(found))
    if as_json:
        print_json({"ids": found, "problems": bad})
    elif out is None:
        for one in found:
            typer.echo(one)
    else:
        print_line(f"{out}: {len(found):,} people")
    for line in bad[:_MOST_SHOWN]:
        errors.print(line, style="red", highlight=False, markup=False, soft_wrap=True)
    if bad:
        fail(
            f"{len(bad)} people or rows cannot be read, and would contribute zero; mend them, or "
            "take them out"
        )


def roster(
    lists: Annotated[list[Path], typer.Argument(help="What `fedpriv data ids` wrote, by node.")],
    out: Annotated[Path, typer.Option(help="The roster, for the server.")],
    users: Annotated[
        Path | None,
        typer.Option(
            help="Also write who is on which node, called by its list (node-1.ids): JSON that "
            "server/keys.sh binds to the nodes' keys."
        ),
    ] = None,
) -> None:
    """Put nodes' lists of ids together, each id once, and say who is on two of them."""
    found = {path: read_roster(path) for path in lists}
    counts = Counter(one for ids in found.values() for one in ids)
    _write(out, _lines(sorted(counts)))
    if users is not None:
        _write_hosts(users, found, counts)
    print_line(f"{out}: {len(counts):,} people")
    if twice := [one for one, number in counts.items() if number > 1]:
        print_line(
            f"{len(twice):,} people are on more than one node (such as {twice[0]}); they "
            "contribute zero until one node alone has their data, or node-users says which one has",
            errors,
        )


def _write_hosts(
    file: Path, found: Mapping[Path, Sequence[str]], counts: Mapping[str, int]
) -> None:
    """Write the ids of each node, by the name of its list; who is on two of them is on none."""
    if len({path.stem for path in found}) < len(found):
        fail("two lists have one name; call each by its node: node-1.ids")
    hosts = {path.stem: [one for one in ids if counts[one] == 1] for path, ids in found.items()}
    _write(file, json.dumps(hosts, indent=1))


def _lines(found: Iterable[str]) -> str:
    return "".join(f"{one}\n" for one in found)


def _write(file: Path, text: str) -> None:
    """Write a file that its owner alone may read: ids are pseudonyms, and of persons still."""
    with writing_to(file):
        file.touch(0o600)
        file.chmod(0o600)
        file.write_text(text, "utf-8")
