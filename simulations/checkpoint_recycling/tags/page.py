"""Pages of the studies of tags by user, with the paper's values and ours, and their plots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedpriv.privacy.epsilon import format_delta, rounded_up_to
from fedpriv.report.bootstrap import Interval, Ratio, Resampled, resampled
from fedpriv.rng import Key
from simulations.checkpoint_recycling.checkpoints import LAST, Marks, draw_gains, kind_of
from simulations.checkpoint_recycling.tags.runs import GROUPS, MAJORITY, PUBLIC
from simulations.checkpoint_recycling.tags.study import (
    AT,
    AT_LASTS,
    FAMILIES,
    KINDS,
    Arms,
    Case,
    Choice,
    Epsilon,
    Halves,
    Period,
    Shifted,
    Size,
    Widths,
)
from simulations.reproduction.study import (
    Row,
    drawing,
    note_below,
    render,
    save,
    synthetic_words,
    t_half,
    table,
)

_VERDICTS = {
    (1, 1): "better",
    (-1, -1): "worse",
    (0, 1): "better over seeds, of these threads alone",
    (0, -1): "worse over seeds, of these threads alone",
    (0, 0): "no difference that is clear",
}
#: A family at an ε.
Place = tuple[str, Epsilon]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Description of the runs behind a page.

    Attributes:
        site: Description of the corpus.
        synthetic: Whether it is.
        delta: Of every ε.
        size: How much was run.
    """

    site: str
    synthetic: bool
    delta: float
    size: Size

    def words(self) -> dict[str, object]:
        """Return what templates name."""
        return {
            "setting": self,
            "synthetic": synthetic_words(self.synthetic),
            "epsilon_terms": epsilon_words(self.delta),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Of one method over another, in points of accuracy.

    Attributes:
        value: The mean over seeds.
        by_seed: Half of the 95 % t-interval over paired seeds; infinite of one seed.
        by_thread: 95 % by a paired bootstrap over groups of threads and seeds; None of too few
            groups.
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

    def __str__(self) -> str:
        half = "" if math.isinf(self.by_seed) else f" ± {self.by_seed:.2f}"
        by = self.by_thread
        return f"{self.value:+.2f}{half}" + (
            "" if by is None else f" [{100 * by.low:+.2f}, {100 * by.high:+.2f}]"
        )


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


def lines_of(case: Case, levels: Row) -> dict[str, Line]:
    """Return accuracies and gains of a case's methods, of the majority tag and the public start.

    Args:
        case: On test threads.
        levels: Row of `Site.levels`.
    """
    some = case.examples > 0
    counts = case.examples[some].astype(float)
    seeds = case.right[LAST].shape[1]
    given = {
        name: np.repeat(np.array(levels["right"][name])[:, None], seeds, axis=1)
        for name in (MAJORITY, PUBLIC)
    } | dict(case.right)
    given = {name: right[some].astype(float) for name, right in given.items()}
    drawn = resampled(
        np.arange(len(counts)),
        [(name, Ratio(values=right, counts=counts)) for name, right in given.items()],
        generator=Key.simulation(0).fold("scraps").generator(),
    )
    share = {name: right.sum(axis=0) / counts.sum() for name, right in given.items()}
    return {
        name: Line(
            accuracy=100 * float(share[name].mean()),
            stddev=100 * float(share[name].std(ddof=1)) if seeds > 1 else 0.0,
            gain=None if name == LAST else _gain(share, drawn, name, LAST),
            over_majority=_gain(share, drawn, name, MAJORITY),
        )
        for name in given
    }


def _gain(
    share: Mapping[str, np.ndarray], drawn: Mapping[str, Resampled], name: str, other: str
) -> Gain:
    apart = 100 * (share[name] - share[other])
    return Gain(
        value=float(apart.mean()),
        by_seed=t_half(apart),
        by_thread=(drawn[name] - drawn[other]).interval(),
    )


def verdict(lines: Mapping[str, Line], names: Mapping[str, str]) -> str:
    """Return what may be said of some methods against the last iterate.

    Args:
        lines: Of a case.
        names: Labels by what `lines` calls them.
    """
    if lines[LAST].over_majority.clear < 1:
        return "no signal: the last iterate is not above the majority tag"
    groups: dict[str, list[str]] = {words: [] for words in _VERDICTS.values()}
    for name, label in names.items():
        gain = lines[name].gain
        if gain is not None:
            groups[_VERDICTS[gain.clear, gain.over_seeds]].append(f"{label} ({gain.value:+.2f})")
    found = [f"{words}: {', '.join(shown)}" for words, shown in groups.items() if shown]
    return "; ".join(found) if found else "nothing was measured"


#: ε, the paper's accuracy of training over aggregates and its gain, relative, per cent.
PAPER = ((8.2, 22.74, "+2.06 (abstract), +2.09 (introduction)"), (18.9, 23.90, "+2.09"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recycled:
    """Results of aggregates at inference and of training over them.

    Attributes:
        setting: Of the runs.
        cases: By family and ε.
        lines: Of the same.
    """

    setting: Setting
    cases: Mapping[Place, Case]
    lines: Mapping[Place, Mapping[str, Line]]


def epsilon_words(delta: float) -> str:
    """Return what every ε of a page is."""
    kinds = "; ".join(f"{one.label}: {one.guarantee}" for one in FAMILIES.values())
    return (
        f"ε at δ = n^-1.1 = {format_delta(delta)}, user-level, simulated (seeded noise); {kinds}. "
        "Tuning on rostered users' validation threads is not covered, and values are measured on "
        "rostered users' held-out text and are not covered either."
    )


def place_words(place: Place) -> str:
    """Return what a case is called."""
    family, epsilon = FAMILIES[place[0]], place[1]
    label = family.label.split(",")[0] if epsilon is None else family.label
    return f"{label}, {kind_of(epsilon)}"


def page(found: Recycled, *, command: str, picture: str = "") -> str:
    """Return the page of aggregates.

    Args:
        found: Of the study.
        command: That makes it.
        picture: Address of the plot; "" for none.
    """
    return render(
        "checkpoint_recycling/tags/page.md.jinja",
        found=found, command=command, picture=picture, paper_table=_paper_table(found),
        summary=[_summary(found, place) for place in found.cases], groups=GROUPS,
        verdicts=partial(_verdicts, found), tables=_accuracy_tables(found),
        choices=_choices_table(found), listed=_listed, **found.setting.words(),
    )  # fmt: skip


def preferred(case: Case) -> tuple[str, str]:
    """Return which aggregate at inference, and which training, validation threads prefer."""
    trained = [name for name in case.chosen if AT in name]

    def best(names: Sequence[str]) -> str:
        return max(names, key=lambda name: case.chosen[name].accuracy)

    return best(KINDS), best(trained)


def _summary(found: Recycled, place: Place) -> str:
    case, lines = found.cases[place], found.lines[place]
    last, said = lines[LAST], []
    for name in preferred(case):
        gain, own = lines[name].gain, case.chosen[name]
        assert gain is not None
        said.append(
            f"{own.name}, at rate {own.rate:g}, has {lines[name].accuracy:.2f} %, "
            f"{100 * gain.value / last.accuracy:+.1f} % of it "
            f"({_VERDICTS[gain.clear, gain.over_seeds]})"
        )
    for side, words in ((1, "better"), (-1, "worse")):
        others = [
            f"{case.chosen[name].name} ({gain.value:+.2f} points)"
            for name in case.chosen
            if name not in (LAST, *preferred(case)) and (gain := lines[name].gain) is not None
            and gain.clear == side
        ]  # fmt: skip
        said += [f"{words}: {', '.join(others)}"] if others else []
    return (
        f"{place_words(place)}: the last iterate has {last.accuracy:.2f} % at its rate of "
        f"{case.chosen[LAST].rate:g}; {'; '.join(said)}"
    )


def _paper_table(found: Recycled) -> str:
    rows = [
        ["paper, DP-FTRL, trained over aggregates", f"{rounded_up_to(epsilon, 3):g}",
         f"{accuracy / (1 + 2.09 / 100):.2f} (implied)", f"{accuracy:.2f}", gain]
        for epsilon, accuracy, gain in PAPER
    ]  # fmt: skip
    for (family, epsilon), case in found.cases.items():
        if epsilon is None:
            continue
        lines = found.lines[family, epsilon]
        last = lines[LAST].accuracy
        for name in preferred(case):
            gain = lines[name].gain
            assert gain is not None
            shown = f"{100 * gain.value / last:+.2f} ± {100 * gain.by_seed / last:.2f}"
            if lines[LAST].over_majority.clear < 1:
                shown = f"no signal ({shown})"
            rows.append([
                f"ours, {FAMILIES[family].label}: {case.chosen[name].name}",
                f"{rounded_up_to(epsilon, 3):g}", f"{last:.2f}", f"{lines[name].accuracy:.2f}",
                shown.replace(" ± inf", " (one seed)"),
            ])  # fmt: skip
    head = ["", "ε", "baseline, %", "with aggregates, %", "gain, % of the baseline"]
    return table(head, rows)


def _label(case: Case, name: str) -> str:
    """Return a method with its parameter, and the rate that is not its own."""
    kind, _, _ = name.partition(AT_LASTS)
    return case.chosen[kind].name + name[len(kind) :]


def _verdicts(found: Recycled, what: str) -> list[str]:
    lines = []
    for place, case in found.cases.items():
        names = KINDS if what == "inference" else [name for name in case.chosen if AT in name]
        labels = {name: _label(case, name) for name in names}
        lines.append(f"{place_words(place)}: {verdict(found.lines[place], labels)}")
    return lines


def _accuracy_tables(found: Recycled) -> dict[str, str]:
    """Return a table by case."""
    tables = {}
    for place, case in found.cases.items():
        rows = []
        for name, line in found.lines[place].items():
            label, rate = name, ""
            if name not in (MAJORITY, PUBLIC):
                label = _label(case, name)
                rate = f"{case.chosen[LAST if AT_LASTS in name else name].rate:g}"
            gain = "" if line.gain is None else str(line.gain)
            rows.append([label, rate, f"{line.accuracy:.2f} ({line.stddev:.2f})", gain])
        tables[place_words(place)] = table(["", "rate", "accuracy", "gain"], rows)
    return tables


def _choices_table(found: Recycled) -> str:
    rows = [
        [place_words(place), *_chosen_words(own, found.setting.size)]
        for place, case in found.cases.items()
        for own in case.chosen.values()
    ]
    return table(
        ["", "method", "rate", "on an edge", "accuracy on validation threads"], rows, words=2
    )


def _chosen_words(own: Choice, size: Size) -> list[str]:
    edges = ["rate"] * own.on_edge
    if own.name != LAST and AT not in own.name:
        kind, value = own.name.split()
        tried = size.which.decays if kind == "EMA" else size.which.ks
        if len(tried) > 1 and float(value) in (min(tried), max(tried)):
            edges.append("decay" if kind == "EMA" else "k")
    return [own.name, f"{own.rate:g}", ", ".join(edges), f"{100 * own.accuracy:.2f}"]


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _note(delta: float) -> str:
    """Return the caption of a picture: what every ε of it is."""
    kinds = "; ".join(f"{one.label}: {one.guarantee.split(',')[0]}" for one in FAMILIES.values())
    return f"ε at δ = {format_delta(delta)}, user-level, simulated ({kinds})"


def draw(found: Recycled, path: Path) -> None:
    """Draw the gains of the chosen methods over the last iterate, each at its own rate."""
    families = list(dict.fromkeys(family for family, _ in found.cases))
    figure = drawing(5.2 * max(2, len(families)), 5.0)
    axes = figure.subplots(1, len(families), squeeze=False)[0]
    for axis, family in zip(axes, families, strict=True):
        cases = {place: case for place, case in found.cases.items() if place[0] == family}
        names = [*KINDS, *(n for n in next(iter(cases.values())).chosen if AT in n)]
        draw_gains(axis, names, [
            Marks(
                label=kind_of(place[1]), color=f"C{number}",
                gains={
                    name: (gain.value, gain.by_seed)
                    for name in names for gain in [found.lines[place][name].gain] if gain
                },
            )
            for number, place in enumerate(cases)
        ])  # fmt: skip
        axis.set_title(FAMILIES[family].label, fontsize=10)
        axis.legend(frameon=False, fontsize=7.5)
    setting = found.setting
    made = "SYNTHETIC data" if setting.synthetic else "real threads"
    figure.suptitle(f"Gain over the last iterate, points of accuracy, {made}", weight="bold")
    note_below(
        figure,
        f"95 % t-intervals over {setting.size.seeds} paired seeds; each method at its own rate. "
        f"{_note(setting.delta)}: a diagnostic, not covered by ε.",
    )
    save(figure, path)


#: ε and the paper's gain under shift, relative, per cent.
PAPER_SHIFT = ((18.9, "+2.64"), (8.2, "+2.82"))

HALVES: Mapping[Halves, str] = {
    "questions": "text in threads that its writer asked, against text in threads of others "
    "(questions against answers, as nearly as tags' examples know)",
    "tags": "text of every second tag, against that of the others",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AllShifted:
    """Results of the study of a shift.

    Attributes:
        setting: Of the runs.
        period: But for what alternates.
        cases: By what alternates, family and ε.
    """

    setting: Setting
    period: Period
    cases: Mapping[tuple[Halves, str, Epsilon], Shifted]


def shift_page(found: AllShifted, *, command: str, picture: str = "") -> str:
    """Return the page of a shift; arguments as of `page`."""
    tables = {}
    for halves in HALVES:
        rows = [
            row
            for (own, family, epsilon), one in found.cases.items()
            if own == halves
            for row in _shift_rows(place_words((family, epsilon)), one)
        ]
        if rows:
            head = ["", "", "rate", "mean", "deviation over the period", "gain",
                    "gain, % of the last iterate", "after the last round"]  # fmt: skip
            tables[halves] = table(head, rows, words=2)
    return render(
        "checkpoint_recycling/tags/shift.md.jinja",
        found=found, period=found.period, command=command, picture=picture, paper=PAPER_SHIFT,
        described=HALVES, tables=tables, **found.setting.words(),
    )  # fmt: skip


def _shift_rows(label: str, one: Shifted) -> list[list[str]]:
    last, rows = one.accuracy[LAST].mean(axis=1), []
    for name, values in one.accuracy.items():
        gain, own = 100 * (values.mean(axis=1) - last), one.chosen[name]
        half = t_half(gain)
        gains = ["", ""]
        if name != LAST:
            behind = "" if math.isinf(half) else f" ± {half:.2f}"
            gains = [f"{gain.mean():+.2f}{behind}", f"{gain.mean() / last.mean():+.1f}"]
        rows.append([
            label, name, f"{own.rate:g}{' (edge)' if own.on_edge else ''}",
            f"{100 * values.mean():.2f}", f"{100 * values.std(axis=1).mean():.2f}", *gains,
            f"{100 * values[:, -1].mean():.2f}",
        ])  # fmt: skip
    return rows


def draw_shift(found: AllShifted, path: Path) -> None:
    """Draw accuracy over the last period, mean of the seeds, each at its own rate."""
    cases = found.cases
    figure = drawing(3.3 * max(2, len(cases)), 3.9)
    axes = figure.subplots(1, len(cases), squeeze=False)[0]
    for axis, ((halves, family, epsilon), one) in zip(axes, cases.items(), strict=True):
        for number, (name, values) in enumerate(one.accuracy.items()):
            axis.plot(
                range(1, values.shape[1] + 1), 100 * values.mean(axis=0),
                color="#333333" if name == LAST else f"C{number - 1}", label=name,
                linewidth=1.6,
            )  # fmt: skip
        axis.axvline(found.period.rounds / 2 + 0.5, color="#999999", linewidth=0.8, linestyle=":")
        axis.set_title(f"{halves}: {place_words((family, epsilon))}", fontsize=8)
        axis.set_xlabel("round of the last period", fontsize=8)
        axis.tick_params(labelsize=8)
    axes[0].set_ylabel("accuracy on test threads, %", fontsize=8)
    axes[0].legend(frameon=False, fontsize=7.5)
    made = "SYNTHETIC data" if found.setting.synthetic else "real threads"
    figure.suptitle(f"Accuracy over a period of shift, {made}", weight="bold", fontsize=10)
    words = f"{_note(found.setting.delta)}:\na diagnostic, not covered by ε. Mean of "
    note_below(figure, f"{words}{found.period.seeds} seeds.", 7)
    save(figure, path)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllWidths:
    """Results of the study of uncertainty.

    Attributes:
        setting: Of the runs.
        arms: Size of both arms.
        cases: By family and ε, widths by k.
    """

    setting: Setting
    arms: Arms
    cases: Mapping[Place, Sequence[Widths]]


def uncertainty_page(found: AllWidths, *, command: str) -> str:
    """Return the page of checkpoints against independent runs; arguments as of `page`."""
    rows, arms = [], found.arms
    for place, every in found.cases.items():
        for w in every:
            chains = f"({100 * min(w.chains):.0f} to {100 * max(w.chains):.0f})"
            rows.append([
                place_words(place), w.k, w.spacing, f"{w.medians[0]:.3f}", f"{w.medians[1]:.3f}",
                f"{w.ratio:.2f}", f"{100 * w.within_two:.0f} % {chains}", f"{100 * w.chance:.0f} %",
                f"{100 * w.below:.0f} %",
                "–" if math.isnan(w.correlation) else f"{w.correlation:.2f}",
                f"{100 * w.corrected_within_two:.0f} %", f"{w.corrected_ratio:.2f}",
            ])  # fmt: skip
    head = ["", "k", "t2", "median width, checkpoints", "runs", "median ratio",
            "within a factor 2 (least and most of a chain)", "two samples of one law",
            "checkpoints below", "lag-1 correlation seen", "corrected: within a factor 2",
            "ratio"]  # fmt: skip
    main = {place: w for place, every in found.cases.items() for w in every if w.k == arms.k}
    return render(
        "checkpoint_recycling/tags/uncertainty.md.jinja",
        found=found, arms=arms, command=command, rows=table(head, rows, align="---"),
        verdicts=[
            f"{place_words(place)}: within a factor 2 for {100 * w.within_two:.0f} % of sentences "
            f"(two samples of one law: {100 * w.chance:.0f} %), the smaller ones for "
            f"{100 * w.below:.0f} %"
            for place, w in main.items()
        ],
        **found.setting.words(),
    )  # fmt: skip
