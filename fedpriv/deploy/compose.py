"""The compose file of a federation of any number of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jinja2

_TEMPLATE = Path(__file__).with_name("compose.yml.md")
_MOST_NODES = 1000


def compose_file(nodes: int, *, checkout: str = "", app: Sequence[str] = ()) -> str:
    """Return the text of a compose file with a server and this number of nodes.

    Every node has a network, keys and data of its own, which no other node mounts.

    Args:
        nodes: SuperNodes, each with a client app, numbered from 1.
        checkout: Folder of a checkout of fedpriv, from which images are built; "" leaves the
            `build` sections out, for images that are there: fedpriv-server, -node and -gate.
        app: Files and folders of a Flower app, relative to the compose file. The operator finds
            them in /project; by default there is only fedpriv's own app, in /app.

    Raises:
        ValueError: If the number of nodes is out of range, a path has characters that YAML or
            compose would read, or the keys would be mounted with the app.
    """
    if not 1 <= nodes <= _MOST_NODES:
        raise ValueError(f"nodes {nodes} is not from 1 to {_MOST_NODES}; give another --nodes")
    for path in (checkout, *app):
        if any(mark in path for mark in '"\\\n$:'):
            raise ValueError(f"path {path!r} has quotes, $, colons or backslashes; rename it")
    for path in app:
        if Path("deploy").absolute().is_relative_to(Path(path).resolve()):
            raise ValueError(
                f"app {path!r} has the folder deploy in it, and with it every node's keys, which "
                "the operator must not see; name the app's files and folders one by one"
            )
    template = jinja2.Template(
        _TEMPLATE.read_text("utf-8"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    mounts = [(f"./{path}", f"/project/{Path(path).name}") for path in app]
    return template.render(nodes=nodes, checkout=checkout, app=mounts)
