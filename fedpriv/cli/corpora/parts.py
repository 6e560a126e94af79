"""`fedpriv data part`: a corpus cut for a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from fedpriv.cli.corpora.output import progress_bar
from fedpriv.cli.terminal.output import console, print_json
from fedpriv.datasets.stackexchange import locate
from fedpriv.datasets.stackexchange.parts import SERVER, cut_corpus
from fedpriv.datasets.stackexchange.splits import BY_THREAD, KINDS, Kind, Split


def register(app: typer.Typer) -> None:
    """Add the command to `fedpriv data`."""
    app.command()(part)


def part(
    corpus: Annotated[str, typer.Argument(help="A prepared corpus, or a name.")],
    out: Annotated[Path, typer.Option(help="A new folder, for server/, node-1/ and so on.")],
    nodes: Annotated[int, typer.Option(help="How many nodes the users are dealt out to.")],
    roster: Annotated[str | None, typer.Option(help="By default the corpus's own.")] = None,
    users: Annotated[int | None, typer.Option(help="Only the roster's first so many.")] = None,
    kind: Annotated[
        str, typer.Option("--split", help=f"One of {', '.join(KINDS)}: what the run will have.")
    ] = BY_THREAD.kind,
    fold: Annotated[int, typer.Option(help="Which fifth is held out.")] = 0,
    select: Annotated[
        str, typer.Option(help="public or last: how the run selects the model that it returns.")
    ] = "public",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Cut a corpus into parts: each node's holds its own users alone, the server's none."""
    with progress_bar("preparing the corpus", quiet=as_json) as tell:
        opened = locate.resolve_corpus(corpus, allow_synthetic=False, progress=tell)
    if select not in ("public", "last"):
        raise ValueError(f"--select {select!r} is unknown; choose public or last")
    selecting = select == "public" and kind != "by-sentence"
    chosen = Split(kind=cast("Kind", kind), fold=fold, selecting=selecting)
    made = cut_corpus(opened, out, nodes=nodes, roster=roster, users=users, split=chosen)
    sizes = {name: len(ids) for name, ids in made.users.items()}
    if as_json:
        print_json({"path": str(out), "users": sizes, "split": chosen.name})
        return
    for name, size in sizes.items():
        console.print(f"{out / name}: {size} users", highlight=False, soft_wrap=True)
    console.print(
        f"{out / SERVER}: the list of all, public users, and no rostered user's sentences",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
