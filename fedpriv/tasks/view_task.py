"""Base of tasks on a view of a corpus: its roster, its users' examples and its description."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from fedpriv.datasets.stackexchange.roster_view import RosterView, TrainingSplit
from fedpriv.datasets.stackexchange.vocabulary import PRIVATE
from fedpriv.tasks.task import Task, TaskDescription

V = TypeVar("V", bound=RosterView[Any])


class ViewTask(Task, Generic[V]):
    """A task on a corpus, seen through a roster and a split.

    Attributes:
        view: The corpus, seen through these.

    Args:
        view: Of the corpus.
        data_sha256: From nothing to digests in hex of what must not change in a run, the prepared
            corpus; None where it is not known: no resumed run is held to it.
    """

    def __init__(self, view: V, data_sha256: Callable[[], Mapping[str, str]] | None = None) -> None:
        self.view, self.data = view, TrainingSplit(view)
        self.roster, self.public_users = view.roster, view.public_users
        self.data_sha256 = data_sha256

    @property
    def roster_sha256(self) -> str:
        """Digest of the roster."""
        return self.view.roster_sha256

    @property
    def counts_are_published(self) -> bool:
        """Whether words were counted among rostered users too, by those who published the data."""
        return self.view.provenance["word_counts_source"] == PRIVATE

    @property
    def counted_in(self) -> str:
        """The text that words were counted in."""
        if self.counts_are_published:
            return "counts published with the data, rostered users included"
        return "text that users outside the roster wrote"

    @property
    def published(self) -> Mapping[str, str] | None:
        """None: models of words are of no published files."""
        return None

    def _description(self, **more: Any) -> TaskDescription:
        """Return names, counts and provenance of the view, and what more there is to say."""
        view = self.view
        given = {"num_words": len(view.words), "provenance": dict(view.provenance), **more}
        return TaskDescription(
            **view.describe(),
            num_users=len(view.roster),
            num_public_users=len(view.public_users),
            **given,
        )
