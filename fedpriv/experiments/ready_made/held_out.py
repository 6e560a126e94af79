"""Tasks of users that data come with: public users and test examples held out, for ready-made ones.

Public users are chosen by a hash of each id, so that no user's examples move another's side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedpriv.datasets.cache import cache_dir, remembered_sha256
from fedpriv.datasets.partitions import choose_public_users
from fedpriv.datasets.raw_files import find_files
from fedpriv.datasets.tff_files import read_tff_users
from fedpriv.hashes import Progress
from fedpriv.tasks.module_task import ModuleTask

_TEST = 0.2

Examples = tuple[np.ndarray, np.ndarray]
Users = dict[str, Examples]


def read_users(
    path: str | None,
    fetched: str,
    file: str,
    splits: tuple[str, str],
    read_leaf: Callable[[Path], Users],
) -> tuple[Path, Users, Users | None]:
    """Return where users' examples lie, their training examples, and their test examples.

    Args:
        path: A file of TFF's, or a file or folder of LEAF's; None for what was fetched.
        fetched: Its name in `fedpriv data fetch`.
        file: Name of TFF's file, without its ending.
        splits: TFF's names of the training and the test split.
        read_leaf: Reads LEAF's files.

    Returns:
        None for the test examples where LEAF's files do not part them.

    Raises:
        ValueError: If there is no such file, or it is damaged.
    """
    if path is None:
        choices = ((f"{file}.sqlite.lzma",), (f"{file}.sqlite",))
        get = f"get it with `fedpriv data fetch {fetched}`, or give its path"
        (found,) = find_files(fetched, choices, get=get)
    else:
        found = Path(path).expanduser()
    parts = [found / name for name in ("train", "test")]
    if all(part.is_dir() for part in parts):
        train, test = map(read_leaf, parts)
    elif found.is_dir() or ".json" in found.name:
        train, test = read_leaf(found), None
    else:
        train, test = (read_tff_users(found, split_name=name) for name in splits)
    return found, train, test


def task_of_users(
    name: str,
    train: Mapping[str, Examples],
    test: Mapping[str, Examples] | None,
    *,
    public: float,
    users: int | None,
    module: Callable[[], nn.Module],
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    path: Path,
    apart: int = 0,
) -> ModuleTask:
    """Return the task of users whose files say who has which example.

    Args:
        name: In reports.
        train: Training examples by user.
        test: Their test examples; None to hold out the last fifth of each user's.
        public: Share of users who are public, every other one of whom, in sorted order, is learnt
            from; released models are measured on the others.
        users: Only the first so many of the roster; None for all.
        module: Makes the model.
        loss: Of a batch.
        path: Of the file or folder that they were read from, for its digest.
        apart: Examples between training and test examples that are left out, where neighbours
            overlap.

    Raises:
        ValueError: If there are fewer users, or not two public ones.
    """
    chosen = sorted(choose_public_users(train, public))
    roster = [user for user in sorted(train) if user not in set(chosen)]
    if len(chosen) < 2:
        raise ValueError(f"{name}: one public user of {len(train):,}; raise public")
    if users is not None and users > len(roster):
        raise ValueError(
            f"users {users:,} is more than the roster of {name} has ({len(roster):,}); give fewer"
        )
    own = {user: train[user] for user in roster[:users]}
    if test is None:
        cuts = {user: int((1 - _TEST) * len(y)) for user, (_, y) in own.items()}
        test = {user: (x[cuts[user] :], y[cuts[user] :]) for user, (x, y) in own.items()}
        ends = {user: max(1, cut - apart) for user, cut in cuts.items()}
        own = {user: (x[: ends[user]], y[: ends[user]]) for user, (x, y) in own.items()}
    return ModuleTask(
        name=f"{name} by {len(own):,} users",
        module=module,
        loss=loss,
        users=own,
        test={user: test[user] for user in own if user in test},
        public=_joined([train[user] for user in chosen[::2]]),
        public_train=_joined([train[user] for user in chosen[1::2]]),
        data_sha256=lambda: {"private": _digest(path)},
    )


def _joined(parts: list[Examples]) -> Examples:
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def _digest(path: Path, progress: Progress | None = None) -> str:
    from hashlib import sha256

    files = sorted(path.rglob("*.json*")) if path.is_dir() else [path]
    digests = [remembered_sha256(file, cache_dir(), progress) for file in files]
    return sha256("\n".join(digests).encode()).hexdigest()
