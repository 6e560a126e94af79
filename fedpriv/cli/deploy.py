"""`fedpriv deploy`: what the containers of a deployment run besides Flower's own programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpriv.cli.output import print_line

app = typer.Typer(no_args_is_help=True, help="Containers: their checks, and the SuperLink.")


def register(to: typer.Typer) -> None:
    """Add the commands to the application."""
    to.add_typer(app, name="deploy")


Keys = Annotated[
    Path | None,
    typer.Option(
        readable=False, help="The container's keys: private ones must be its user's alone."
    ),
]


@app.command()
def check(
    keys: Keys = None,
    corpus: Annotated[
        Path | None,
        typer.Option(readable=False, help="The container's part of a corpus, to be opened."),
    ] = None,
    roster: Annotated[
        Path | None, typer.Option(readable=False, help="A server's file of ids, a line each.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(readable=False, help="The node's own files, to be opened.")
    ] = None,
    data_key: Annotated[
        Path | None, typer.Option(readable=False, help="The key of their ids; with --data.")
    ] = None,
    experiment: Annotated[
        str | None, typer.Option(help="Whose task reads everybody in --data, for bad rows.")
    ] = None,
    listens: Annotated[
        int | None,
        typer.Option(help="A port that the container's program answers on over TLS; with --keys."),
    ] = None,
    asks: Annotated[
        Path | None,
        typer.Option(
            readable=False, help="The launcher's folder (FLWR_HOME/launched): it must be answered."
        ),
    ] = None,
    asked: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            help="The SuperNode's folder (FLWR_HOME/supernode): a client app must ask for work.",
        ),
    ] = None,
    writes: Annotated[
        list[Path] | None,
        typer.Option(readable=False, help="A folder it must be able to write to; repeat."),
    ] = None,
    quiet: Annotated[bool, typer.Option(help="Say nothing where all is well.")] = False,
) -> None:
    """Refuse root, keys that others may read, and users that cannot be read.

    Containers start with it, and a health check asks it again.
    """
    from fedpriv.datasets.local_data import NodeData
    from fedpriv.datasets.user_ids import read_roster
    from fedpriv.deploy.checks import (
        check_answers,
        check_asked,
        check_asks,
        check_data,
        check_keys,
        check_own_users,
        check_user,
        check_users,
        check_writes,
    )

    said: list[str] = []
    try:
        check_user()
        if keys is not None:
            check_keys(keys)
            said.append(f"{keys}: its owner's alone")
        if corpus is not None:
            said.append(f"{corpus}: {check_users(corpus)} users")
        if roster is not None:
            said.append(f"{roster}: {len(read_roster(roster))} users")
        if data is not None:
            if data_key is None:
                raise ValueError("--data needs --data-key: the key that its ids are made with")
            own = NodeData(data.resolve(), data_key.resolve())
            check_data(own)
            if experiment is not None:
                said.append(f"{data}: {check_own_users(own, experiment)} users")
        for folder in writes or ():
            check_writes(folder)
        if listens is not None:
            if keys is None:
                raise ValueError("--listens needs --keys, where ca.crt is")
            check_answers(listens, keys / "ca.crt")
        if asks is not None:
            check_asks(asks)
        if asked is not None:
            check_asked(asked)
    except OSError as error:
        raise ValueError(str(error)) from error
    if not quiet:
        for line in said:
            print_line(line)


@app.command()
def superlink(
    keys: Annotated[
        Path, typer.Option(readable=False, help="ca.crt, superlink.pem and .key, secret, nodes/.")
    ],
    port: Annotated[int, typer.Option(help="What it listens on, at every address.")] = 8000,
) -> None:
    """Run Flower's SuperLink with TLS, known nodes only, and no database."""
    from fedpriv.deploy.checks import check_keys, check_user
    from fedpriv.deploy.superlink import superlink as run_superlink

    try:
        check_user()
        check_keys(keys)
        code = run_superlink(keys, port, tell=print_line)
    except (OSError, RuntimeError) as error:
        raise ValueError(str(error)) from error
    raise typer.Exit(code)


@app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [],
    }
)
def operator(context: typer.Context) -> None:
    """Run Flower's `flwr`, with all of its commands and options.

    `run --stream` and `log` end with status 1 unless the run has succeeded; those of `flwr` end
    with 0 however it ended. Refused where Flower lacks a name that this uses.
    """
    from fedpriv.deploy.flower_private import OF_OPERATOR, check_flower, run_operator

    check_flower(OF_OPERATOR)
    run_operator(context.args)


@app.command()
def compose(
    nodes: Annotated[int, typer.Option(help="Nodes, each a SuperNode and a client app.")],
    out: Annotated[
        Path, typer.Option(help="The file to write; an existing one is overwritten.")
    ] = Path("docker-compose.yml"),
    checkout: Annotated[
        str,
        typer.Option(help="A checkout of fedpriv to build images from; none uses those built."),
    ] = "",
    app: Annotated[
        list[str] | None,
        typer.Option(help="A file or folder of a Flower app, for the operator; repeat."),
    ] = None,
) -> None:
    """Write a compose file with a server and any number of nodes."""
    from fedpriv.deploy.compose import compose_file

    text = compose_file(nodes, checkout=checkout, app=app or ())
    try:
        out.write_text(text, "utf-8")
    except OSError as error:
        raise ValueError(f"{out} cannot be written: {error.strerror or error}") from error
    print_line(f"{out}: a server and {nodes} nodes")
