"""What a killed run has paid for, and what it has drawn."""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedpriv.privacy.ledger.state import Charge, read_ledger


@dataclass(slots=True, kw_only=True)
class Figures:
    """What the kills of one run did.

    Attributes:
        what: The run.
        kills: SIGKILLs, by what was killed.
        attempts: Charges on the ledger at the end, or rows where one charge pays for all.
        releases: Of them released.
        under_counts: Draws that no charge stands for, or that came before theirs.
        reused_noise: Noises that were drawn for a second charge, or added to a second sum.
        reused_cohorts: Keys that a second cohort was drawn from.
        over_limit: Times that a user was in one released row too many, or too soon.
        lost: Attempts without a release.
        most_lost: Attempts lost by one kill.
        verified: Whether `verify` passes at the end.
        seconds: It took.
    """

    what: str
    kills: dict[str, int] = field(default_factory=dict)
    attempts: int = 0
    releases: int = 0
    under_counts: int = 0
    reused_noise: int = 0
    reused_cohorts: int = 0
    over_limit: int = 0
    lost: int = 0
    most_lost: int = 0
    verified: bool = False
    seconds: float = 0.0

    @property
    def num_kills(self) -> int:
        """Return the SIGKILLs."""
        return sum(self.kills.values())

    @property
    def hold(self) -> bool:
        """Return whether nothing was drawn unpaid or twice, and no kill cost more than a round."""
        wrong = self.under_counts + self.reused_noise + self.reused_cohorts + self.over_limit
        servers = sum(n for name, n in self.kills.items() if name.startswith("server"))
        return not wrong and self.verified and self.most_lost <= 1 and self.lost <= servers

    def document(self) -> dict[str, object]:
        """Return it as JSON has it."""
        return {**asdict(self), "hold": self.hold}


@dataclass(slots=True, kw_only=True)
class Books:
    """A run's folder and the log of its draws.

    Attributes:
        folder: The run's.
        draws: Written by `spy/sitecustomize.py` in every process of the run.
        figures: Counted here.
        limit: In how many rows of correlated noise one user may be, and how far apart.
    """

    folder: Path
    draws: Path
    figures: Figures
    limit: tuple[int, int] | None = None

    @property
    def ledger(self) -> Path:
        """The run's ledger."""
        return self.folder / "ledger.jsonl"

    def num_draws(self) -> int:
        """Return how many cohorts and sums the log has."""
        text = self.draws.read_bytes() if self.draws.exists() else b""
        return text.count(b'"kind": "cohort"') + text.count(b'"kind": "sum"')

    def workers(self) -> set[int]:
        """Return the process ids of all workers that there have been."""
        return {line["pid"] for line in self._lines() if line["kind"] == "worker"}

    def num_releases(self) -> int:
        """Return how many releases are on the ledger, as far as its lines are whole."""
        return self._count(b'"kind":"release"')

    def killed(self, what: str, *, alive: bool = False) -> None:
        """Count a kill, and look at everything that there is after it.

        Args:
            what: Was killed.
            alive: Whether the server goes on: then its last charge is not lost yet.
        """
        self.figures.kills[what] = self.figures.kills.get(what, 0) + 1
        self.look(alive=alive)

    def look(self, *, alive: bool = False) -> None:
        """Compare what was drawn with what was charged."""
        lines = self._lines()
        figures = self.figures
        state = read_ledger(self.ledger)[1] if self._count(b"\n") else None
        fixed = None if state is None else state.plan.mechanism  # a filter has none
        after = "retry" if fixed is None else fixed.recorded.after_crash
        drawn = {
            kind: [line for line in lines if line["kind"] == kind]
            for kind in ("cohort", "noise", "sum")
        }
        figures.under_counts = sum(_unpaid(drawn[kind], after) for kind in ("cohort", "noise"))
        figures.reused_noise = _reused_noise(drawn["noise"], drawn["sum"], after)
        figures.reused_cohorts = _reused_keys(drawn["cohort"], after)
        if state is None:
            return
        if self.limit is not None:
            figures.over_limit = _over_limit(lines, *self.limit)
        if alive:
            return
        figures.releases = len(state.releases)
        figures.attempts = len(state.rows)
        if after != "discard":
            figures.attempts = figures.releases + _lost_rounds(state.lost)
        if after == "replay":  # what was cut off is made again
            return
        lost = figures.attempts - figures.releases
        figures.most_lost = max(figures.most_lost, lost - figures.lost)
        figures.lost = lost

    def end(self, *, ok: bool) -> Figures:
        """Look for the last time, and return the figures.

        Args:
            ok: Whether `verify` passes.
        """
        self.look()
        self.figures.verified = ok
        self.figures.lost = self.figures.attempts - self.figures.releases
        return self.figures

    def _count(self, text: bytes) -> int:
        return self.ledger.read_bytes().count(text) if self.ledger.exists() else 0

    def _lines(self) -> list[dict[str, Any]]:
        if not self.draws.exists():
            return []
        return [json.loads(line) for line in self.draws.read_text("utf-8").splitlines()]


def _lost_rounds(lost: Iterable[Charge]) -> int:
    """Return how often a round was lost, which may have been charged for several answers."""
    of_round: dict[int, Counter[str]] = defaultdict(Counter)
    for charge in lost:
        of_round[charge.round_num][charge.query] += 1
    return sum(max(counts.values()) for counts in of_round.values())


def _unpaid(lines: Iterable[dict[str, Any]], after: str) -> int:
    """Return how many draws had no charge before them, or only one that had paid for another."""
    of_charge: dict[str | None, set[str]] = defaultdict(set)
    for line in lines:
        of_charge[line["charge"]].add(json.dumps([line.get("key"), line["drawn"]]))
    unpaid = len(of_charge.pop(None, ()))
    if after == "discard":  # one charge pays for every row
        return unpaid
    return unpaid + sum(len(found) - 1 for found in of_charge.values())


def _reused_noise(
    noise: Sequence[dict[str, Any]], sums: Sequence[dict[str, Any]], after: str
) -> int:
    """Return how many noises were drawn or used again, but for a sum that is released again."""
    drawn = [(line["drawn"], line["charge"]) for line in noise]
    if after != "retry":  # rows are passed over, and a release is replayed, under one charge
        drawn = list(dict.fromkeys(drawn))
    used = [(line["noise"], line["drawn"]) for line in sums]
    if after == "replay":
        used = list(dict.fromkeys(used))
    return max(_repeated(name for name, _ in drawn), _repeated(name for name, _ in used))


def _reused_keys(cohorts: Sequence[dict[str, Any]], after: str) -> int:
    """Return how many keys were used again, but for a cohort that is drawn again for a replay."""
    found = [(line["key"], line["charge"], tuple(line["drawn"])) for line in cohorts]
    if after == "replay":
        found = list(dict.fromkeys(found))
    return _repeated(key for key, _, _ in found)


def _over_limit(lines: Iterable[dict[str, Any]], most: int, min_separation: int) -> int:
    """Return how often a user was in a released row after its last one, or too soon for it.

    Rows are numbered in the order in which they are drawn first: a process draws them all again.
    """
    rows: dict[str, int] = {}
    cohort_of: dict[int, list[str]] = {}
    taken: dict[str, list[int]] = defaultdict(list)
    for line in lines:
        if line["kind"] == "noise":
            rows.setdefault(line["drawn"], len(rows))
        elif line["kind"] == "cohort":
            cohort_of[line["pid"]] = line["drawn"]
        elif line["kind"] == "sum":
            for user in cohort_of[line["pid"]]:
                taken[user].append(rows[line["noise"]])
    over = 0
    for found in taken.values():
        over += max(0, len(found) - most)
        near = (b - a < min_separation for a, b in itertools.pairwise(found))
        over += sum(near)
    return over


def _repeated(found: Iterable[str]) -> int:
    return sum(number - 1 for number in Counter(found).values())
