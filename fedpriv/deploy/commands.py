"""The launcher's commands: `fedpriv supernode` and `fedpriv superexec`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

_IDLE = typer.Option(
    "--idle-seconds",
    help="Longest pause between two looks for work while there is none; after work they are short.",
)
BUNDLES_VARIABLE = "FEDPRIV_BUNDLES"
_SHA256 = re.compile(r"[0-9a-f]{64}")


def register(app: typer.Typer) -> None:
    """Add the launcher's commands."""
    forwarded = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(context_settings=forwarded)(supernode)
    app.command()(superexec)


def supernode(context: typer.Context, idle_seconds: Annotated[float, _IDLE] = 0.5) -> None:
    """Run Flower's SuperNode, with all of its options, so that rounds need not wait for it.

    Flower's looks for a message every 3 seconds. Isolation is "process" unless --isolation says
    otherwise: `fedpriv superexec`, or Flower's, answers the messages. Refused where Flower
    lacks a name that this uses.
    """
    from fedpriv.deploy.flower_private import OF_SUPERNODE, check_flower
    from fedpriv.deploy.launcher import supernode as run

    check_flower(OF_SUPERNODE)
    run(context.args, idle_seconds)


def superexec(
    runtime_api_address: Annotated[
        str, typer.Option(help="HOST:PORT of the SuperNode, or of the SuperLink.")
    ],
    insecure: Annotated[bool, typer.Option("--insecure", help="Connect without TLS.")] = False,
    root_certificates: Annotated[
        Path | None, typer.Option(help="PEM of the authority that the address is checked with.")
    ] = None,
    superexec_auth_secret_file: Annotated[
        Path | None,
        typer.Option(help="Flower's SuperExec secret, as given to the SuperNode or SuperLink."),
    ] = None,
    users: Annotated[
        Path | None,
        typer.Option(
            "--users",
            "--corpus",
            help="This node's corpus, over the one that its SuperNode's node-config names.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="This node's own files, likewise; with --data-key."),
    ] = None,
    data_key: Annotated[
        Path | None, typer.Option(help="The key that ids are made with; with --data.")
    ] = None,
    node_config: Annotated[
        str, typer.Option(help="Further keys over the SuperNode's node-config: 'a=1 b=\"c\"'.")
    ] = "",
    bundle: Annotated[
        list[str] | None,
        typer.Option(
            help="SHA-256 of a bundle (of `flwr build`'s file) that may run here. Once given, no "
            "other is run; may be given again, or in FEDPRIV_BUNDLES, with spaces between them."
        ),
    ] = None,
    apps: Annotated[
        Path | None,
        typer.Option(help="Folder that bundles are unpacked to; FLWR_HOME/launched unless given."),
    ] = None,
    idle_seconds: Annotated[float, _IDLE] = 0.5,
) -> None:
    """Answer a SuperNode's messages, or run a SuperLink's ServerApps, in place of flower-superexec.

    A run's bundle is imported, and the node's users are opened, once; each message is answered by
    a process forked from there, and what happens to it happens to that message alone. Refused
    where Flower lacks a name that this uses; flower-superexec gives the same results.
    """
    from fedpriv.deploy.flower_private import (
        OF_SUPEREXEC,
        Connection,
        check_flower,
        flower_home,
        parse_config,
    )
    from fedpriv.deploy.launcher import superexec as run
    from fedpriv.deploy.warm import Node

    check_flower(OF_SUPEREXEC)
    if not re.fullmatch(r"\S+:[0-9]{1,5}", runtime_api_address):
        raise ValueError(
            f"--runtime-api-address {runtime_api_address!r} has no port; give HOST:PORT, such as "
            "127.0.0.1:9094 of a SuperNode, or 127.0.0.1:8000 of a SuperLink"
        )
    config: dict[str, Any] = parse_config(node_config)
    if users is not None and data is not None:
        raise ValueError("--users and --data: a node has a corpus or local files; give one")
    for name, path in (("--users", users), ("--data", data), ("--data-key", data_key)):
        if path is not None and not path.exists():
            raise ValueError(f"{name} {str(path)!r} is not there; give what is on this machine")
    own = {"corpus": users, "data": data, "data-key": data_key}
    config |= {key: str(path.absolute()) for key, path in own.items() if path is not None}
    pins = pinned_bundles(bundle or (), os.environ)
    if insecure and root_certificates is not None:
        raise ValueError("--insecure takes no --root-certificates: leave one of them out")
    secret = None
    if superexec_auth_secret_file is not None:
        secret = superexec_auth_secret_file.read_bytes()
        if not secret:
            raise ValueError(
                f"--superexec-auth-secret-file {str(superexec_auth_secret_file)!r} is empty"
            )
    tls = ["--insecure"] if insecure else []
    if root_certificates is not None:
        tls = ["--root-certificates", str(root_certificates)]
    run(
        Node(
            connection=Connection(
                address=runtime_api_address,
                certificates=None if root_certificates is None else root_certificates.read_bytes(),
                insecure=insecure,
            ),
            config=config,
            bundles=pins,
            apps=(apps or flower_home() / "launched").absolute(),
        ),
        ["--runtime-api-address", runtime_api_address, *tls],
        secret,
        idle_seconds,
    )


def pinned_bundles(given: Sequence[str], environment: Mapping[str, str]) -> frozenset[str]:
    """Return the bundles that may run: those of the command line and of FEDPRIV_BUNDLES.

    Empty where neither is given: then any may. A variable that is blank, such as one that was
    filled from an empty file, lists none and is refused.

    Raises:
        ValueError: If one is no SHA-256, or the variable is blank.
    """
    text = environment.get(BUNDLES_VARIABLE, "")
    listed = text.replace(",", " ").split()
    if text and not listed:
        raise ValueError(
            f"{BUNDLES_VARIABLE} is {text!r:.80} and lists no bundle; list those that may run "
            "here, or leave it empty to run any"
        )
    for name, pins in (("--bundle", given), (BUNDLES_VARIABLE, listed)):
        for pin in pins:
            if not _SHA256.fullmatch(pin):
                raise ValueError(
                    f"{name} {pin!r:.80} is no SHA-256: 64 hex digits, as sha256sum prints"
                )
    return frozenset([*given, *listed])
