"""Groups whose figures can be read against each other: one measure of one split of a corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedpriv.measures import Measure
from fedpriv.report.comparison.groups import Column, Group
from fedpriv.report.headline import Estimate, estimate
from fedpriv.report.plots.drawing import Reference
from fedpriv.report.wording import figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Groups of one corpus whose tasks have one headline.

    Attributes:
        groups: At least one, in the order given.
    """

    groups: tuple[Group, ...]

    @property
    def corpus(self) -> str:
        """The corpus, marked where it is synthetic, and how it was split."""
        run = self.groups[0].head
        made = " (synthetic)" if run.synthetic else ""
        held_out = f", {run.held_out}" if run.held_out else ""
        return f"{run.corpus.get('name') or 'own data'}{made}{held_out}"

    @property
    def headline(self) -> Measure | None:
        """What heads the figures of its tasks."""
        figures = self.groups[0].head.figures
        return figures[0] if figures else None

    @property
    def title(self) -> str:
        """Corpus and headline."""
        return self.corpus if self.headline is None else f"{self.corpus}: {self.headline.label}"

    @property
    def lead(self) -> Column | None:
        """The headline of those held out: of rostered users, or of the test set."""
        if self.headline is None:
            return None
        first = all(group.head.unit == "user" for group in self.groups)
        for diagnosed in (first, not first):
            column = Column(measure=self.headline, diagnosed=diagnosed)
            if any(group.measure(column) for group in self.groups):
                return column
        return None

    @property
    def majority(self) -> float | None:
        """The majority class's value, where all who know it know the same one."""
        if self.headline is None:
            return None
        known = {g.head.baseline(self.headline) for g in self.groups} - {None}
        return known.pop() if len(known) == 1 else None

    @property
    def public_only(self) -> Estimate | None:
        """What public-only reached, over all runs."""
        measure = self.headline
        if measure is None:
            return None
        return estimate([r.public_only(measure) for group in self.groups for r in group.runs])

    @property
    def nonprivate(self) -> tuple[Group, Estimate] | None:
        """The best finished group without noise, and what it reached."""
        lead, found = self.lead, []
        if lead is None:
            return None
        for group in self.groups:
            value = group.measure(lead)
            if not group.head.private and group.finished and value is not None:
                found.append((group, value))
        return max(found, key=lambda one: lead.measure.worth(one[1].mean), default=None)

    def gap_closed(self, group: Group) -> float | None:
        """Return which share of the gap between public-only and non-private a group closes."""
        best, gain, public_only = self.nonprivate, group.gain, group.public_only
        if best is None or gain is None or public_only is None or not group.finished:
            return None
        gap = best[0].gain.mean if best[0].gain else best[1].mean - public_only.mean
        return gain.mean / gap if gap > 0 and group.head.private else None

    def references(self, *, nonprivate: bool) -> list[Reference]:
        """Return the lines to read the lead against; the non-private one if it is asked for."""
        lead, public_only, best = self.lead, self.public_only, self.nonprivate
        if lead is None:
            return []
        known = [
            ("majority class", self.majority, False),
            ("public-only", public_only.mean if public_only else None, True),
            ("non-private", best[1].mean if best and nonprivate else None, False),
        ]
        return [
            Reference(value=value, label=label, text=figure(lead.measure, value), dotted=dotted)
            for label, value, dotted in known
            if value is not None
        ]


def sections_of(groups: Sequence[Group]) -> list[Section]:
    """Return groups that measure one thing on one split of a corpus, in the order given."""
    found: dict[tuple[object, ...], list[Group]] = {}
    for group in groups:
        run = group.head
        headline = run.figures[0] if run.figures else None
        key = (headline, repr(run.corpus.get("name")), run.synthetic, run.held_out)
        found.setdefault(key, []).append(group)
    return [Section(groups=tuple(members)) for members in found.values()]
