"""A node of a federation: it hosts users, lists their opaque ids, and answers with one bounded sum.

    flower-supernode --insecure --superlink HOST:8000 --node-config 'corpus="/corpora/own"'

What a node learns: the model, the public bound, which of its *own* users take part, and a key of
this round. What leaves it: the opaque ids of its users, and sums of bounded updates.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedpriv.backends.flower.client import Host, serve
from fedpriv.backends.flower.log import show_log
from fedpriv.backends.flower.settings import NODE_KEYS, Node, open_node, read_host


def _logged(
    message: Message, context: Context, answer: Callable[[Message, Context], Message]
) -> Message:
    """Answer a message in a process whose log is lines."""
    show_log()
    return answer(message, context)


app = ClientApp(mods=[_logged])


def _host(context: Context) -> Host:
    """Return who lives here, made anew for each message from what was opened once."""
    where = {key: value for key, value in context.node_config.items() if key in NODE_KEYS}
    node = _node(json.dumps(context.run_config), json.dumps(where))
    return read_host(node, context.run_config, context.node_config)


@lru_cache(maxsize=2)
def _node(run_config: str, node_config: str) -> Node:
    """Open a node's users and make a trainer once for each process and run; files are shared."""
    return open_node(json.loads(run_config), json.loads(node_config))


serve(app, _host, from_run_config=True)
