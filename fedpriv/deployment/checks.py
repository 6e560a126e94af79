"""What a container refuses to start with, and what makes it unhealthy later."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import Any

from fedpriv.data.corpus.corpus import Corpus
from fedpriv.data.own.users import NodeData, OwnUsers
from fedpriv.experiments.catalogue import load_experiment
from fedpriv.experiments.own_code import own_code
from fedpriv.experiments.task_factory import make_task

#: Names of files that anybody may read.
_PUBLIC = (".crt", ".pem", ".pub")


def check_user() -> None:
    """Refuse to be root: what breaks out of a process has no more rights than it.

    Raises:
        PermissionError: If this process is root's.
    """
    if os.geteuid() == 0:
        raise PermissionError(
            "this process is root's; run it as a user of its own (in compose `user: 10001:10001`)"
        )


def check_keys(folder: Path) -> None:
    """Refuse private keys and secrets that others than their owner may read.

    Args:
        folder: Keys and certificates of one container; names that end with .crt, .pem or .pub are
            of public ones.

    Raises:
        PermissionError: If a group or everybody has a right to a private file, or it cannot be
            read by this process.
        ValueError: If there is no key.
    """
    private = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.suffix not in _PUBLIC]
    if not private:
        raise ValueError(f"{folder} holds no key; make them by `sh server/keys.sh`")
    for path in private:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise PermissionError(
                f"{path} has mode {mode:04o}, so that others may read it; chmod 600 it, and make "
                "it anew if others have been on this machine"
            )
        if not os.access(path, os.R_OK):
            raise PermissionError(
                f"{path} cannot be read by user {os.geteuid()}; give it to that user, or start the "
                "container as its owner"
            )


def check_users(corpus: Path) -> int:
    """Return how many users a machine can read; refuse one that can read none.

    Raises:
        ValueError: If the corpus is damaged, or nobody is listed in it.
    """
    try:
        number = len(Corpus.open(corpus).listed())
    except OSError as error:
        raise ValueError(f"{corpus} cannot be read: {error}") from error
    if number == 0:
        raise ValueError(f"{corpus} lists no user; mount the part of this node")
    return number


def check_own_users(data: NodeData, experiment: str) -> int:
    """Return how many users a node's own files hold; refuse files of which a row is bad.

    Args:
        data: Where they are, and the key of their ids.
        experiment: Whose task reads them; everybody is read.

    Raises:
        ValueError: With the first row that cannot be taken, or what is wrong with the whole.
        PermissionError: If others may read the key.
    """
    users = own_users_of(experiment, data)
    problem = next(users.problems(), None)
    if problem is not None:
        raise ValueError(
            f"{problem}; the person would contribute zero: mend the row, or take it out "
            "(`fedpriv data ids` names all such rows)"
        )
    return len(users)


def own_users_of(name: str, data: NodeData) -> OwnUsers:
    """Return the users of an experiment's task on this machine.

    Raises:
        ValueError: If the task reads no data of a node's own.
    """
    experiment = load_experiment(name)
    with own_code(f"while the task of {name} was made"):
        task: Any = make_task(experiment, None, data)
    found = getattr(getattr(task, "data", None), "users", None)
    if not isinstance(found, OwnUsers):
        raise ValueError(
            f"the task of {name} has no users of a node's own files; give it "
            "users=own_users(TABLE, examples, data=data, ...)"
        )
    return found


def check_listens(port: int) -> None:
    """Refuse a program of this container that does not take connections.

    Raises:
        ConnectionError: With its port.
    """
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            return
    except OSError as error:
        raise ConnectionError(f"nothing listens on port {port} here ({error})") from error


def check_writes(folder: Path) -> None:
    """Refuse a folder that this process cannot write to.

    Raises:
        PermissionError: With its owner.
    """
    if not os.access(folder, os.W_OK | os.X_OK):
        owner = folder.stat().st_uid if folder.exists() else "none: it is not there"
        raise PermissionError(
            f"{folder} cannot be written to by user {os.geteuid()} (owner: {owner}); give it to "
            "that user"
        )
