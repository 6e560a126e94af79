"""Whether a run goes on with the data it was started with: an ε is of one training set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from fedpriv.datasets.digests import keyed


@runtime_checkable
class KnowsDigests(Protocol):
    """A task that may say what its data are."""

    @property
    def data_sha256(self) -> Callable[[], Mapping[str, str]] | None:
        """From nothing to digests in hex by part; None where it does not say."""
        ...


def data_digests(task: Any, secret: bytes | None = None) -> dict[str, str] | None:
    """Return digests of a task's data by part, keyed where there is a secret.

    Returns:
        None where the task says nothing of its data, so that they cannot be checked.
    """
    if not isinstance(task, KnowsDigests) or task.data_sha256 is None:
        return None
    digests = dict(task.data_sha256())
    return digests if secret is None else keyed(digests, secret)


def check_data_digests(
    task: Any, sealed: Mapping[str, str] | None, secret: bytes | None, where: str
) -> None:
    """Compare a task's data with those that a run was started with.

    Args:
        task: Of the run that is resumed.
        sealed: What `data_digests` gave at the start; None, where it was not known, checks nothing.
        secret: The one of the start.
        where: The run's name in messages.

    Raises:
        ValueError: If the data differ, or the task says nothing of them any more.
    """
    if sealed is None:
        return
    name, found = task.describe().name, data_digests(task, secret)
    if found is None:
        raise ValueError(
            f"{name} no longer says what its data are (data_sha256 None), but {where} was "
            "started on known ones; give the task its data_sha256 again, or start a new run"
        )
    changed = [part for part in sorted({*sealed, *found}) if sealed.get(part) != found.get(part)]
    if changed:
        short = ", ".join(
            f"{part} {found.get(part, 'none')[:12]} instead of {sealed.get(part, 'none')[:12]}"
            for part in changed
        )
        raise ValueError(
            f"the {' and '.join(changed)} examples of {name} are not those that {where} was "
            f"started with (SHA-256: {short}); restore them, or start a new run in another folder"
        )
