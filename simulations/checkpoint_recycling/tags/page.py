"""The page of aggregates on real threads, with the paper's figures beside ours, and its plot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedpriv.privacy.epsilon import format_delta, rounded_up_to
from fedpriv.rng import Key
from simulations.checkpoint_recycling.checkpoints import LAST, Marks, draw_gains, kind_of
from simulations.checkpoint_recycling.tags.runs import Site
from simulations.checkpoint_recycling.tags.study import (
    AT,
    FAMILIES,
    Arms,
    Chosen,
    Epsilon,
    Family,
    Rights,
    Scores,
    Size,
)
from simulations.evaluation.bootstrap import Interval, Ratio, Resampled, resampled
from simulations.evaluation.held_out import held_out, majority
from simulations.reproduction.study import (
    drawing,
    note_below,
    render,
    save,
    synthetic_words,
    t_half,
    table,
)

_SAID = {
    (1, 1): "better",
    (-1, -1): "worse",
    (0, 1): "better over seeds, of these threads alone",
    (0, -1): "worse over seeds, of these threads alone",
    (0, 0): "no difference that is clear",
}
MAJORITY, PUBLIC = "majority tag", "public-only"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Of one method over another, in points of accuracy.

    Attributes:
        value: The mean over seeds.
        by_seed: Half of the 95 % t-interval over paired seeds; infinite of one seed.
        by_thread: 95 % by a paired bootstrap over threads and seeds; None of too few threads.
    """

    value: float
    by_seed: float
    by_thread: Interval | None

    @property
    def clear(self) -> int:
        """1 or -1 where both intervals are on one side of zero, else 0."""
        if self.by_thread is None:
            return 0
        of_threads = _side(self.by_thread.low, self.by_thread.high)
        return of_threads if of_threads == self.over_seeds else 0

    @property
    def over_seeds(self) -> int:
        """1 or -1 where the interval over seeds is on one side of zero, else 0."""
        return _side(self.value - self.by_seed, self.value + self.by_seed)


def _side(low: float, high: float) -> int:
    return 1 if low > 0 else -1 if high < 0 else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A method of one case.

    Attributes:
        accuracy: Per cent, mean over seeds.
        stddev: Over seeds, points; 0 of one.
        gain: Over the last iterate; None of that itself.
        over_majority: Over the majority tag.
    """

    accuracy: float
    stddev: float
    gain: Gain | None
    over_majority: Gain


def lines_of(site: Site, right: Rights, public: np.ndarray) -> dict[str, Line]:
    """Return the figures of a case's methods, of the majority tag and of the public start.

    Args:
        site: Whose threads.
        right: By method, uint8 (seeds, n).
        public: What the public start has right, uint8 (n,).
    """
    view = site.view()
    constant = majority(view).right
    seeds = len(next(iter(right.values())))
    given = dict(right)
    for name, one in ((MAJORITY, constant), (PUBLIC, public)):
        given[name] = np.repeat(one[None], seeds, axis=0)
    count = np.ones(len(constant))
    drawn = resampled(
        held_out(view).threads,
        [(n, Ratio(values=r.T.astype(float), counts=count)) for n, r in given.items()],
        generator=Key.simulation(0).fold("scraps").generator(),
    )
    return {
        name: Line(
            accuracy=100 * float(one.mean()),
            stddev=100 * float(one.mean(axis=1).std(ddof=1)) if seeds > 1 else 0.0,
            gain=None if name == LAST else _gain(given, drawn, name, LAST),
            over_majority=_gain(given, drawn, name, MAJORITY),
        )
        for name, one in given.items()
    }


def _gain(given: Rights, drawn: Mapping[str, Resampled], name: str, other: str) -> Gain:
    apart = 100 * (given[name].mean(axis=1) - given[other].mean(axis=1))
    return Gain(
        value=float(apart.mean()),
        by_seed=t_half(apart),
        by_thread=(drawn[name] - drawn[other]).interval(),
    )


def chosen_methods(chosen: Chosen, lines: Mapping[str, Line]) -> dict[str, list[str]]:
    """Return what a verdict is of: aggregates chosen beforehand, and what was trained over them."""
    kinds = list(chosen.aggregate.values())
    return {
        "inference": [name for name in kinds if name in lines],
        "training": [name for name in lines if AT in name],
    }


def verdict(lines: Mapping[str, Line], names: Sequence[str]) -> str:
    """Return what may be said of some methods against the last iterate."""
    if lines[LAST].over_majority.clear < 1:
        return "no signal: the last iterate is not above the majority tag"
    groups: dict[str, list[str]] = {said: [] for said in _SAID.values()}
    for name in names:
        gain = lines[name].gain
        if gain is not None:
            groups[_SAID[gain.clear, gain.over_seeds]].append(f"{name} ({gain.value:+.2f})")
    found = [f"{said}: {', '.join(shown)}" for said, shown in groups.items() if shown]
    return "; ".join(found) if found else "nothing was measured"


#: ε, the paper's accuracy with aggregates and its gain, relative, per cent.
PAPER = ((8.2, 22.74, "+2.06 (abstract), +2.09 (introduction)"), (18.9, 23.90, "+2.09"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Results of the study.

    Attributes:
        site: What is said of the corpus.
        synthetic: Whether it is.
        delta: Of every ε.
        size: How much was run.
        chosen: By family.
        lines: By family, then by ε and multiple of the rate.
        arms: How line by line the scores were measured.
        scores: Of DP-SGD, by ε; () where none were measured.
    """

    site: str
    synthetic: bool
    delta: float
    size: Size
    chosen: Mapping[str, Chosen]
    lines: Mapping[str, Mapping[tuple[Epsilon, float], Mapping[str, Line]]]
    arms: Arms
    scores: Sequence[Scores] = ()


def epsilon_words(delta: float, families: Mapping[str, Family] = FAMILIES) -> str:
    """Return what every ε of a page is."""
    own = "; ".join(f"{name}: {family.guarantee}" for name, family in families.items())
    return (
        f"ε at δ = n^-1.1 = {format_delta(delta)}, user-level, simulated (seeded noise); {own}. "
        "Tuning on rostered users' validation threads is not covered, and figures are measured on "
        "rostered users' held-out text and are not covered either."
    )


def page(found: Measured, *, command: str, picture: str = "") -> str:
    """Return the page.

    Args:
        found: Of the study.
        command: That makes it.
        picture: Address of the plot; "" for none.
    """
    main = [w for one in found.scores for w in one.widths if w.k == found.arms.k]
    return render(
        "checkpoint_recycling/tags/page.md.jinja",
        found=found, command=command, picture=picture, families=FAMILIES,
        synthetic=synthetic_words(found.synthetic), epsilon_terms=epsilon_words(found.delta),
        first=kind_of(found.size.epsilons[0]), paper_table=_paper_table(found),
        verdicts=partial(_verdicts, found), last_iterates=_last_iterates(found),
        accuracy_tables=_accuracy_tables(found), tuning_table=_tuning_table(found),
        scores_table=_scores_table(found), within=[100 * w.within_two for w in main],
        below=[100 * w.below for w in main],
        per_cent=lambda shares: " and ".join(f"{share:.0f} %" for share in shares),
    )  # fmt: skip


def _paper_table(found: Measured) -> str:
    rows = [
        ["paper, DP-FTRL", f"{rounded_up_to(epsilon, 3):g}",
         f"{accuracy / (1 + 2.09 / 100):.2f} (implied)", f"{accuracy:.2f}", gain, "–"]
        for epsilon, accuracy, gain in PAPER
    ]  # fmt: skip
    for name, cases in found.lines.items():
        for (epsilon, by), own in cases.items():
            if by != 1 or epsilon is None:
                continue
            for what, names in chosen_methods(found.chosen[name], own).items():
                if not names:
                    continue
                one = max(names, key=lambda n, own=own: own[n].accuracy)
                last, best, gain = own[LAST].accuracy, own[one].accuracy, own[one].gain
                half = math.inf if gain is None else gain.by_seed
                beyond = 100 * (best / best_last(cases, epsilon) - 1)
                shown = f"{100 * (best / last - 1):+.2f} ± {100 * half / last:.2f}"
                if own[LAST].over_majority.clear < 1:
                    shown = f"no signal ({shown})"
                rows.append([
                    f"ours, {name}, {what}: {one}", f"{rounded_up_to(epsilon, 3):g}",
                    f"{last:.2f}", f"{best:.2f}", shown, f"{beyond:+.2f}",
                ])  # fmt: skip
    head = ["", "ε", "last iterate, %", "with aggregates, %", "gain, % of the last iterate",
            "of the best last iterate at any rate"]  # fmt: skip
    return table(head, rows)


def best_last(cases: Mapping[tuple[Epsilon, float], Mapping[str, Line]], epsilon: Epsilon) -> float:
    """Return the best accuracy of last iterates at an ε, of the rates that were measured."""
    return max(own[LAST].accuracy for (e, _), own in cases.items() if e == epsilon)


def _verdicts(found: Measured, what: str) -> list[str]:
    lines = []
    for name, cases in found.lines.items():
        for (epsilon, by), own in cases.items():
            names = chosen_methods(found.chosen[name], own)[what]
            if names:
                rate = "" if by == 1 else f", {by:g} times the rate"
                lines.append(f"{name}, {kind_of(epsilon)}{rate}: {verdict(own, names)}")
    return lines


def _last_iterates(found: Measured) -> dict[str, list[str]]:
    """Return, by family, what last iterates have at the first ε, the lowest rate first."""
    return {
        name: [
            f"{own[LAST].accuracy:.2f} % at rate {by * found.chosen[name].rates[epsilon]:g} "
            f"(deviation over seeds {own[LAST].stddev:.2f})"
            for (epsilon, by), own in sorted(cases.items(), key=lambda one: one[0][1])
            if epsilon == found.size.epsilons[0]
        ]
        for name, cases in found.lines.items()
    }


def _accuracy_tables(found: Measured) -> dict[str, dict[float, str]]:
    """Return a table by family and by what the rate is multiplied by."""
    tables: dict[str, dict[float, str]] = {}
    for name, cases in found.lines.items():
        tables[name], rates = {}, found.chosen[name].rates
        for by in dict.fromkeys(by for _, by in cases):
            own, head = {epsilon: one for (epsilon, b), one in cases.items() if b == by}, [""]
            for epsilon in own:
                head += [f"{kind_of(epsilon)} (rate {by * rates[epsilon]:g})", "gain"]
            rows = [
                [method, *(text for one in own.values() for text in _cells(one.get(method)))]
                for method in _methods(own)
            ]
            tables[name][by] = table(head, rows)
    return tables


def _methods(own: Mapping[Epsilon, Mapping[str, Line]]) -> list[str]:
    names = list(dict.fromkeys(name for one in own.values() for name in one))
    return [MAJORITY, PUBLIC, LAST, *(n for n in names if n not in (MAJORITY, PUBLIC, LAST))]


def _cells(line: Line | None) -> tuple[str, str]:
    if line is None:
        return "–", "–"
    return f"{line.accuracy:.2f} ({line.stddev:.2f})", _shown(line.gain)


def _shown(gain: Gain | None) -> str:
    if gain is None:
        return ""
    shown = f"{gain.value:+.2f} ± {gain.by_seed:.2f}"
    by = gain.by_thread
    return shown if by is None else f"{shown} [{100 * by.low:+.2f}, {100 * by.high:+.2f}]"


def _tuning_table(found: Measured) -> str:
    size, rows = found.size, []
    for name, chosen in found.chosen.items():
        for epsilon, rate in chosen.rates.items():
            tried = [f"{100 * chosen.tried[epsilon, one]:.2f}" for one in size.rates]
            kinds = ", ".join(chosen.aggregate.values()) if epsilon == size.epsilons[0] else ""
            edge = " (edge)" if rate in (min(size.rates), max(size.rates)) else ""
            rows.append([f"{name}, {kind_of(epsilon)}", *tried, f"{rate:g}{edge}", kinds])
    return table(["", *(f"{rate:g}" for rate in size.rates), "chosen", "aggregates"], rows)


def _scores_table(found: Measured) -> str:
    rows = []
    for one in found.scores:
        for w in one.widths:
            there = f"{one.correlation:.2f}" if w.spacing == one.spacing else "–"
            chains = f"({100 * min(w.chains):.0f} to {100 * max(w.chains):.0f})"
            rows.append([
                f"{rounded_up_to(one.epsilon, 3):g}", w.k, w.spacing, there, one.rounds,
                f"{w.medians[0]:.3f}", f"{w.medians[1]:.3f}", f"{w.ratio:.2f}",
                f"{100 * w.within_two:.0f} % {chains}", f"{100 * w.chance:.0f} %",
                f"{100 * w.below:.0f} %",
                "–" if math.isnan(w.correlation) else f"{w.correlation:.2f}",
                f"{100 * w.corrected_within_two:.0f} %", f"{w.corrected_ratio:.2f}",
            ])  # fmt: skip
    head = ["ε", "k", "t2", "correlation there", "T", "median width, checkpoints", "runs",
            "median ratio", "within a factor 2 (least and most of a chain)",
            "two samples of one law", "checkpoints below", "lag-1 correlation seen",
            "corrected: within a factor 2", "ratio"]  # fmt: skip
    return table(head, rows, align="---")


def note_of(delta: float) -> str:
    """Return what stands below a picture: what every ε of it is."""
    kinds = "; ".join(f"{name}: {one.guarantee.split(',')[0]}" for name, one in FAMILIES.items())
    return f"ε at δ = {format_delta(delta)}, user-level, simulated ({kinds})"


def draw(found: Measured, path: Path) -> None:
    """Draw the gains of the chosen methods over the last iterate."""
    figure = drawing(11.5, 5.2)
    axes = figure.subplots(1, len(found.lines), squeeze=False)[0]
    for axis, (name, cases) in zip(axes, found.lines.items(), strict=True):
        first = cases[found.size.epsilons[0], 1.0]
        chosen = chosen_methods(found.chosen[name], first)
        names = [*chosen["inference"], *chosen["training"]]
        every = (*found.size.epsilons, None)
        few = {at: own for at, own in cases.items() if at[1] <= 1}  # of more, gains are far off
        draw_gains(axis, names, [
            Marks(
                label=kind_of(epsilon) + ("" if by == 1 else f", {by:g} times the rate"),
                gains={
                    n: (gain.value, gain.by_seed)
                    for n in names if n in own for gain in [own[n].gain] if gain is not None
                },
                color=f"C{every.index(epsilon)}", filled=by == 1,
            )
            for (epsilon, by), own in few.items()
        ])  # fmt: skip
        axis.set_title(name, fontsize=10)
        axis.legend(frameon=False, fontsize=7.5)
    made = "SYNTHETIC data" if found.synthetic else "real threads"
    figure.suptitle(f"Gain over the last iterate, points of accuracy, {made}", weight="bold")
    note_below(
        figure,
        f"95 % t-intervals over {found.size.seeds} paired seeds. {note_of(found.delta)}: a "
        "diagnostic, not covered by ε.",
    )
    save(figure, path)
