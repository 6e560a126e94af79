"""Checks of a container: before it starts, and of its health later."""

from __future__ import annotations

import http.client
import os
import ssl
import stat
import time
from pathlib import Path
from typing import Any

from fedpriv.datasets.local_data import SUFFIXES, LocalUsers, NodeData
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.manifest import FILE_NAME as MANIFEST
from fedpriv.datasets.user_ids import read_key
from fedpriv.deploy.launcher import ASKED
from fedpriv.experiments.build import make_task
from fedpriv.experiments.load import load_experiment
from fedpriv.experiments.user_code import user_code

#: Names of files that anybody may read.
_PUBLIC = (".crt", ".pem", ".pub")
_PATIENCE = 5.0  # seconds until a program that does not answer is taken for stopped
#: Without an answer a launcher is unhealthy; between two looks it sleeps a second at most.
MOST_SECONDS = 60.0


def check_user() -> None:
    """Refuse to be root: what breaks out of a process has no more rights than it.

    Raises:
        PermissionError: If this process is root's.
    """
    if os.geteuid() == 0:
        raise PermissionError(
            "this process is root's; run it as another user (in compose `user: 10001:10001`)"
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
                "it again if others have been on this machine"
            )
        if not os.access(path, os.R_OK):
            raise PermissionError(
                f"{path} cannot be read by user {os.geteuid()}; give it to that user, or start the "
                "container as its owner"
            )


def check_users(corpus: Path) -> int:
    """Return how many users a machine can read; refuse one that cannot read them.

    Every file is opened; what is in large ones is not compared with its checksum each time.

    Raises:
        ValueError: If there is no corpus, a file of it is damaged or cannot be read, or it lists no
            user.
    """
    if not (corpus / MANIFEST).is_file():
        raise ValueError(
            f"{corpus} has no {MANIFEST}; mount this machine's part there, of those that `fedpriv "
            "data part` has made"
        )
    try:
        number = len(Corpus.open(corpus).listed())
        for path in sorted(corpus.rglob("*")):
            if path.is_file():
                _read_a_byte(path)
    except OSError as error:
        raise ValueError(f"{corpus} cannot be read: {error}") from error
    if number == 0:
        raise ValueError(f"{corpus} lists no user; mount the part of this node")
    return number


def check_data(data: NodeData) -> None:
    """Refuse a node's own files that are not there or cannot be read, and the key of their ids.

    Rows are not read: `check_own_users` does.

    Raises:
        ValueError: If there is no such file, none of a kind that is read, or no key.
        PermissionError: If others may read the key, or this process cannot read a file.
    """
    read_key(data.key)
    files = sorted(data.path.glob("*.csv")) if data.path.is_dir() else [data.path]
    if not files:
        raise ValueError(f"{data.path} has no CSV file; mount the files of this node's people")
    if not data.path.exists():
        raise ValueError(f"{data.path} is not there; mount the files of this node's people")
    for path in files:
        if path.suffix.lower() not in SUFFIXES:
            raise ValueError(f"{path} ends in none of {', '.join(SUFFIXES)}")
        _read_a_byte(path)


def _read_a_byte(path: Path) -> None:
    with path.open("rb") as file:
        file.read(1)


def check_own_users(data: NodeData, experiment: str) -> int:
    """Return how many users a node's own files hold; refuse files of which a row is bad.

    Args:
        data: Where they are, and the key of their ids.
        experiment: Whose task reads them; everybody is read.

    Raises:
        ValueError: With the first row that cannot be taken, or what is wrong with the whole.
        PermissionError: If others may read the key.
    """
    users = local_users_of(experiment, data)
    problem = next(users.problems(), None)
    if problem is not None:
        raise ValueError(
            f"{problem}; the person would contribute zero: mend the row, or take it out "
            "(`fedpriv data ids` names all such rows)"
        )
    return len(users)


def local_users_of(name: str, data: NodeData) -> LocalUsers:
    """Return the users of an experiment's task on this machine.

    Raises:
        ValueError: If the task reads no data of a node's own.
    """
    experiment = load_experiment(name)
    with user_code(f"while the task of {name} was made"):
        task: Any = make_task(experiment, None, data)
    found = getattr(getattr(task, "data", None), "users", None)
    if not isinstance(found, LocalUsers):
        raise ValueError(
            f"the task of {name} has no users of a node's own files; give it "
            "users=local_users(TABLE, examples, data=data, ...)"
        )
    return found


def check_answers(port: int, ca: Path) -> None:
    """Refuse a program of this container that does not answer over TLS.

    One that has stopped still has its port open, and the system takes connections for it.

    Args:
        port: Where it answers, on this machine.
        ca: Who signed its certificate, which must be of "localhost" too.

    Raises:
        ConnectionError: With the port.
    """
    context = ssl.create_default_context(cafile=str(ca))
    line = http.client.HTTPSConnection("localhost", port, timeout=_PATIENCE, context=context)
    try:
        line.request("GET", "/health")
        status = line.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionError(f"nothing answers on port {port} here ({error})") from error
    finally:
        line.close()
    if status >= 500:
        raise ConnectionError(f"the program on port {port} here answers {status}")


def check_asks(apps: Path) -> None:
    """Refuse a launcher that has not been answered for a while when it asked for work.

    Args:
        apps: Its folder of bundles; the time of a file in it is that of the last answer.

    Raises:
        ConnectionError: With how long that is ago.
    """
    ago = _seconds_since(apps / ASKED)
    if ago is None:
        raise ConnectionError(
            f"no launcher of {apps} has been answered yet: its SuperNode or SuperLink is not "
            "reached, or refuses it"
        )
    if ago > MOST_SECONDS:
        raise ConnectionError(
            f"the launcher of {apps} was last answered {ago:.0f} s ago: it has stopped, or its "
            "SuperNode or SuperLink is gone"
        )


def check_asked(folder: Path) -> None:
    """Refuse a SuperNode that no client app has asked for work for a while: it can answer nothing.

    Args:
        folder: The SuperNode's; the time of a file in it is that of the last question.

    Raises:
        ConnectionError: With how long that is ago.
    """
    ago = _seconds_since(folder / ASKED)
    if ago is None or ago > MOST_SECONDS:
        since = "since it started" if ago is None else f"for {ago:.0f} s"
        raise ConnectionError(
            f"no client app has asked this SuperNode for work {since}: start its client app again"
        )


def _seconds_since(file: Path) -> float | None:
    """Return how long ago a file was written; None if it is not there."""
    try:
        return time.time() - file.stat().st_mtime
    except FileNotFoundError:
        return None


def check_writes(folder: Path) -> None:
    """Refuse a folder that this process cannot write to.

    Raises:
        PermissionError: With what to do: it is not there, mounted to read only, or another user's.
    """
    if os.access(folder, os.W_OK | os.X_OK):
        return
    user = os.geteuid()
    if not folder.exists():
        why = "it is not there; mount it"
    elif os.statvfs(folder).f_flag & os.ST_RDONLY:
        why = "it is on a disk that is mounted to read only; mount it to be written to"
    elif (owner := folder.stat().st_uid) == user:
        why = (
            f"it is that user's, with mode {stat.S_IMODE(folder.stat().st_mode):04o}; chmod 700 it"
        )
    else:
        why = f"its owner is {owner}; give it to user {user}"
    raise PermissionError(f"{folder} cannot be written to by user {user}: {why}")
