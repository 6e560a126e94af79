"""What a killed run has paid for, and what it has drawn."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fedpriv.privacy.ledger.state import LedgerState, read_ledger
from fedpriv.rng import Key
from fedpriv.runs.noise_root import noise_root


@dataclass(slots=True, kw_only=True)
class Figures:
    """What the kills of one run did.

    Attributes:
        what: The run.
        kills: SIGKILLs, by what was killed.
        charges: On the ledger at the end.
        releases: Of them released.
        under_counts: Draws that no charge stands for, or that came before theirs.
        reused_noise: Noises that were drawn a second time: by their keys, or their values.
        reused_cohorts: Cohorts likewise, by their keys.
        lost: Charges without a release.
        most_lost: Rounds lost by one kill.
        verified: Whether `verify` passes at the end.
        seconds: It took.
    """

    what: str
    kills: dict[str, int] = field(default_factory=dict)
    charges: int = 0
    releases: int = 0
    under_counts: int = 0
    reused_noise: int = 0
    reused_cohorts: int = 0
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
        none = not (self.under_counts or self.reused_noise or self.reused_cohorts)
        servers = sum(n for name, n in self.kills.items() if name.startswith("server"))
        return none and self.verified and self.most_lost <= 1 and self.lost <= servers

    def document(self) -> dict[str, object]:
        """Return it as JSON has it."""
        return {**asdict(self), "hold": self.hold}


@dataclass(slots=True, kw_only=True)
class Books:
    """A run's folder and the log of its draws.

    Attributes:
        folder: The run's.
        draws: Written by `spy/sitecustomize.py` in every process of the run.
        seed: Of the simulation, from which keys are known here.
        figures: Counted here.
    """

    folder: Path
    draws: Path
    seed: int
    figures: Figures

    def num_draws(self) -> int:
        """Return how many lines of draws the log has."""
        return self.draws.read_bytes().count(b'"key"') if self.draws.exists() else 0

    def workers(self) -> set[int]:
        """Return the process ids of all workers that there have been."""
        return {line["pid"] for line in self._lines() if line["kind"] == "worker"}

    def num_releases(self) -> int:
        """Return how many releases are on the ledger, as far as its lines are whole."""
        ledger = self.folder / "ledger.jsonl"
        return ledger.read_bytes().count(b'"kind":"release"') if ledger.exists() else 0

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
        lines = self._lines()  # before the ledger, which is written first
        ledger = self.folder / "ledger.jsonl"
        state = read_ledger(ledger)[1] if ledger.exists() and _has_lines(ledger) else None
        paid = {kind: set(_digests(kind, state, self.seed)) for kind in ("cohort", "noise")}
        keys: dict[str, list[str]] = {kind: [] for kind in paid}
        noise = []
        for line in lines:
            if line["kind"] == "worker":
                continue
            if "drawn" not in line:
                keys[line["kind"]].append(line["key"])
            elif line["kind"] == "noise":
                noise.append(line["drawn"])
        figures = self.figures
        unpaid = sum(key not in paid[kind] for kind in paid for key in keys[kind])
        # What is paid for later was drawn before it was.
        figures.under_counts = max(figures.under_counts, unpaid)
        figures.reused_noise = max(_twice(keys["noise"]), _twice(noise))
        figures.reused_cohorts = _twice(keys["cohort"])
        if state is not None and not alive:
            figures.charges, figures.releases = len(state.charges), len(state.releases)
            lost = figures.charges - figures.releases
            figures.most_lost = max(figures.most_lost, lost - figures.lost)
            figures.lost = lost

    def _lines(self) -> list[dict]:
        if not self.draws.exists():
            return []
        return [json.loads(line) for line in self.draws.read_text("utf-8").splitlines()]


def _has_lines(ledger: Path) -> bool:
    return b"\n" in ledger.read_bytes()


def _digests(kind: str, state: LedgerState | None, seed: int) -> Iterator[str]:
    """Yield the digest of the key of each charge's draw."""
    if state is None:
        return
    root = noise_root(Key.simulation(seed), state.extra)
    for charge in state.charges:
        key = root.fold(kind).fold(charge.round_num).fold(charge.attempt)
        yield hashlib.sha256(key.to_bytes()).hexdigest()


def _twice(found: list[str]) -> int:
    return len(found) - len(set(found))
