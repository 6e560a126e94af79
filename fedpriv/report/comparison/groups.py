"""Groups of runs that differ in their seed only: their names, sections, curves and differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fedpriv.measures import Measure
from fedpriv.privacy.epsilon import rounded_up
from fedpriv.privacy.plan import UnitWords
from fedpriv.privacy.statement.coverage import Coverage
from fedpriv.report.bootstrap import REPLICATES, Interval, Ratio, resampled
from fedpriv.report.charts import MARKERS, Reference
from fedpriv.report.head import Estimate, estimate, privacy_terms
from fedpriv.report.page import same_experiment_key
from fedpriv.report.run_record import Row, RunRecord, guaranteed, read_run, spent
from fedpriv.report.theme import NUM_SERIES, series
from fedpriv.report.wording import exact, figure, words_of_all


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A measure, and of whom.

    Attributes:
        measure: What is measured.
        diagnosed: Whether of rostered users, which no ε covers, or of public ones.
    """

    measure: Measure
    diagnosed: bool

    @property
    def key(self) -> str:
        """Its name in the records."""
        return self.measure.name if self.diagnosed else self.measure.released_name

    def rows(self, run: RunRecord) -> tuple[Row, ...]:
        """Return the records that hold it."""
        return run.diagnosed if self.diagnosed else run.released


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSums:
    """Headline measure of one model, user by user: a diagnostic, which no ε covers.

    Attributes:
        count: int64 (n_users,), held-out examples of each user of the roster.
        value: float64 (n_users,), the sum of the measure over them.
        public_value: The same of the model of public data alone, or None.
    """

    count: np.ndarray
    value: np.ndarray
    public_value: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name in ("value", "public_value"):
            sums = getattr(self, name)
            if sums is not None and sums.shape != self.count.shape:
                raise ValueError(
                    f"{name} is of shape {sums.shape} and count of {self.count.shape}; both have "
                    "one number for each user of the roster"
                )

    @property
    def over_public(self) -> np.ndarray | None:
        """The sums minus those of the public-only model; None if those are unknown."""
        return None if self.public_value is None else self.value - self.public_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Runs that differ in their seed only.

    Attributes:
        runs: At least one.
        label: What names it among those that it is compared with.
        method: The method, of which it is one ε; "" where the options of the runs tell.
        part: The data that it was trained on, which has a section of its own; "" likewise.
        target: The ε that its noise was calibrated to, infinite without privacy; None for the
            option of the runs, or else what they spent.
        seconds: How long each run took, set-up included; empty where it was not measured.
        by_user: For each run, sums over each user's held-out examples, or None; empty where
            users were not measured one by one. A diagnostic.
    """

    runs: tuple[RunRecord, ...]
    label: str
    method: str = ""
    part: str = ""
    target: float | None = None
    seconds: tuple[float | None, ...] = ()
    by_user: tuple[UserSums | None, ...] = field(default=(), repr=False)
    _measured: dict[str, Estimate | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def head(self) -> RunRecord:
        """The first of the runs, which speaks for all in what they share."""
        return self.runs[0]

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return self.head.name

    @property
    def coverage(self) -> Coverage:
        """Parts of the data that the ε of these runs does not cover, each phrase once."""
        found = [run.coverage for run in self.runs]
        phrases = dict.fromkeys(phrase for one in found for phrase in one.not_covered)
        return Coverage(not_covered=tuple(phrases), reason=found[0].reason)

    @property
    def epsilon(self) -> float:
        """The largest ε spent by one of the runs; infinite without noise."""
        return max(spent(run).value for run in self.runs)

    @property
    def level(self) -> float:
        """The ε that it is compared at: the target, or else what was spent; infinite without."""
        if self.target is not None:
            return self.target
        if not self.head.private:
            return math.inf
        given = self.head.options.get("noise.target_epsilon")
        return float(given) if given is not None else rounded_up(self.epsilon, 2)

    @property
    def finished(self) -> bool:
        """Whether its runs came to their end."""
        return all(run.finished for run in self.runs)

    @property
    def unfinished_mark(self) -> str:
        """Remark on the values of runs that are not at their end, or ""."""
        if self.finished:
            return ""
        done = min(run.rounds_done for run in self.runs)
        planned = self.head.rounds_planned
        of = "" if planned is None else f" of {planned:,}"
        return f"unfinished: {done:,}{of} {self.head.words.turn}s"

    @property
    def public_only(self) -> Estimate | None:
        """Headline value of the best model of public data alone, over the runs."""
        if not self.head.figures:
            return None
        return estimate([run.public_only(run.figures[0]) for run in self.runs])

    @property
    def gain(self) -> Estimate | None:
        """Gain of the headline over public-only, run by run, over the runs."""
        if "gain" not in self._measured:
            found = estimate([run.gain for run in self.runs])
            self._measured["gain"] = self._by_user(found, over_public=True)
        return self._measured["gain"]

    def measure(self, column: Column) -> Estimate | None:
        """Return mean and interval of a measure of the models that runs return.

        The interval of the headline is by user where every run measured its users one by one.
        """
        if column.key not in self._measured:
            found = estimate([run.reached(column.key, column.rows(run)) for run in self.runs])
            if column.diagnosed and column.measure in self.head.figures[:1]:
                found = self._by_user(found)
            self._measured[column.key] = found
        return self._measured[column.key]

    def _by_user(self, found: Estimate | None, *, over_public: bool = False) -> Estimate | None:
        """Return an estimate of the headline, with an interval over users where there is one."""
        known = [one for one in self.by_user if one is not None]
        if found is None or not known or len(known) < len(self.runs):
            return found
        values = [one.over_public if over_public else one.value for one in known]
        if any(value is None for value in values):
            return found
        ends = user_interval([one.count for one in known], [v for v in values if v is not None])
        if ends is None:
            return found
        return replace(found, half_width=(ends.high - ends.low) / 2, by_user=True)


SEED = 0x5EED  # of the bootstrap: equal folders give equal pages


def user_interval(
    counts: Sequence[np.ndarray],
    values: Sequence[np.ndarray],
    generator: np.random.Generator | None = None,
    replicates: int = REPLICATES,
) -> Interval | None:
    """Return the 95 % interval of a mean over examples, users and seeds drawn anew.

    Args:
        counts: int64 (n_users,), examples of each user, for each seed.
        values: float64 (n_users,), sums over them, for each seed.
        generator: Draws; None for one of a fixed seed.
        replicates: How many.

    Returns:
        None where seeds do not share the users' held-out examples, so that there are no clusters of
        all of them, or where fewer than two users have any.
    """
    if any(not np.array_equal(count, counts[0]) for count in counts[1:]):
        return None
    there = np.flatnonzero(counts[0])
    if len(there) < 2:
        return None
    ratio = Ratio(
        values=np.stack(values, axis=1)[there], counts=counts[0][there].astype(np.float64)
    )
    drawn = resampled(
        there,
        [("mean", ratio)],
        generator=generator or np.random.default_rng(SEED),
        replicates=replicates,
    )
    return drawn["mean"].interval()


def columns_of(groups: Sequence[Group]) -> list[Column]:
    """Return what some group measures: of rostered users, then of public ones."""
    measures = dict.fromkeys(measure for group in groups for measure in group.head.figures)
    return [Column(measure=m, diagnosed=d) for d in (True, False) for m in measures]


def find_groups(directories: Sequence[str | Path]) -> tuple[list[Group], list[str]]:
    """Return the runs among folders, grouped in the order given, and why each other is left out.

    Raises:
        ValueError: If there is no run among them.
    """
    runs: dict[str, RunRecord] = {}
    left_out = []
    for directory in directories:
        try:
            run = read_run(directory)
            run_id = run.sealed.state.run_id
        except (OSError, ValueError) as error:
            left_out.append(str(error))
            continue
        if run_id in runs:
            other = runs[run_id].directory
            left_out.append(f"{directory} is the run of {other}, given twice or copied")
        else:
            runs[run_id] = run
    if not runs:
        raise ValueError(
            "; ".join(["none of these is a run folder", *left_out])
            + "; give folders that `fedpriv run` wrote, such as runs/*"
        )
    return group_runs(list(runs.values())), left_out


def read_groups(directories: Sequence[str | Path]) -> list[Group]:
    """Return runs grouped by experiment, in the order given.

    Raises:
        ValueError: If a folder is not a run, or a run is given twice.
    """
    groups, left_out = find_groups(directories)
    if left_out:
        raise ValueError(left_out[0])
    return groups


def group_runs(runs: Sequence[RunRecord]) -> list[Group]:
    """Return runs of one experiment that differ in their seed as one group, named by what differs.

    A run that repeats another one's seed is no further sample: it is a group of its own. So are
    unfinished runs, whose figures are those of another number of rounds.
    """
    found: list[list[RunRecord]] = []
    for run in runs:
        same = [
            others
            for others in found
            if _sample_key(others[0]) == _sample_key(run)
            and not any(_same_seed(other, run) for other in others)
        ]
        # Seeds 0 and 1 of two backends are two groups of one backend each.
        same.sort(key=lambda others: _backend(others[0]) != _backend(run))
        if same:
            same[0].append(run)
        else:
            found.append([run])
    labels = labels_of_runs([others[0] for others in found])
    return [
        Group(runs=tuple(others), label=label) for others, label in zip(found, labels, strict=True)
    ]


def _sample_key(run: RunRecord) -> tuple[object, ...]:
    # Nothing says in what user-defined loops differ: each is a group of its own.
    alone = None if run.user_loop is None else str(run.directory)
    return (*same_experiment_key(run), run.label, run.finished, alone)


def _backend(run: RunRecord) -> object:
    return run.backend


def _same_seed(one: RunRecord, other: RunRecord) -> bool:
    """Return whether two runs drew the same; secure ones have no seed, and never did."""
    return one.simulated and one.options.get("seed") == other.options.get("seed")


def differences(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Return the options in which the groups differ, each with one value a group."""
    names = dict.fromkeys(name for group in groups for name in group.head.options)
    found = {}
    for name in names:
        if name in ("seed", "name", "description"):
            continue
        values = [exact(group.head.options.get(name)) for group in groups]
        if len(set(values)) > 1:
            found[name] = values
    modes = ["simulated" if group.head.simulated else "secure" for group in groups]
    # No option: what a device computes differs in its last bits, and so do models.
    devices = [group.head.device or "none" for group in groups]
    found |= {"device": devices} if len(set(devices)) > 1 else {}
    return {"mode": modes, **found} if len(set(modes)) > 1 else found


def shared_options(groups: Sequence[Group]) -> dict[str, str]:
    """Return the options that are the same in every run, seeds among them."""
    first, *others = (run.options for group in groups for run in group.runs)
    return {
        name: exact(value)
        for name, value in first.items()
        if name not in ("name", "description")
        and all(name in options and options[name] == value for options in others)
    }


def mismatches(groups: Sequence[Group]) -> list[str]:
    """Return why figures of the groups must not be read against each other."""
    guarantees = [guaranteed(group.head) for group in groups if group.head.private]
    facts = {
        "corpus": [(g.head.corpus.get("name"), g.head.synthetic) for g in groups],
        "roster": [g.head.corpus.get("roster_sha256") for g in groups],
        "what is held out": [g.head.held_out for g in groups],
        "what is measured": [g.head.figures for g in groups],
        "δ": [p.delta for p in guarantees],
        "neighbouring relation": [p.relation for p in guarantees],
        "unit of privacy": [g.head.unit for g in groups],
        "what ε covers": [g.coverage.not_covered for g in groups if g.head.private],
    }
    return [name for name, values in facts.items() if len(set(values)) > 1]


def interval_words(groups: Sequence[Group], lead: Column) -> str:
    """Return what the intervals of the headline are over, and those of other measures."""
    found = [one for group in groups if (one := group.measure(lead)) and one.half_width is not None]
    two = "; of two seeds it is very wide" if any(len(g.runs) == 2 for g in groups) else ""
    over_seeds = f"t-interval over seeds{two}"
    by_user = [one.by_user for one in found]
    if not any(by_user):
        return over_seeds
    name = lead.measure.label
    where = "" if all(by_user) else " where users were measured one by one"
    return (
        f"interval of a bootstrap over users and seeds for {name} and its gain{where}, of all else "
        f"a {over_seeds}"
    )


def terms_of(groups: Sequence[Group]) -> str:
    """Return the terms that the ε of the groups are meaningless without; "" if none is private."""
    terms = (", ".join(privacy_terms(group.head)) for group in groups if group.head.private)
    return "; or ".join(dict.fromkeys(terms))


def gaps(groups: Sequence[Group]) -> list[str]:
    """Return a sentence for each group whose ε does not cover everything, or one for all alike."""
    marks = {group.coverage.mark for group in groups if group.head.private}
    if len(groups) > 1 and len(marks) == 1 and (mark := marks.pop()):
        return [f"The ε of each private run {mark}."]
    return [
        f"The ε of {group.label} {group.coverage.mark}." for group in groups if group.coverage.mark
    ]


# Of two options that tell runs apart equally well, the one that a reader looks for first.
_FIRST = (
    "noise.target_epsilon", "method", "start", "precondition", "noise", "bound", "sampling",
    "noise.multiplier",
)  # fmt: skip
_LEFT_OUT = ("seed", "name", "description")
_MOST = 4
_MODE = "mode"


def labels_of_runs(runs: Sequence[RunRecord], *, without: Sequence[str] = ()) -> list[str]:
    """Return a name for each run, no two alike: its label or experiment where that is enough.

    Else the options in which those of one name differ are added, as few as tell them apart: first
    those that all of them have, for an option that some lack follows from another; then backend,
    corpus and version; and of runs that differ in nothing, the folder.

    Args:
        runs: The runs.
        without: Options that are not named.
    """
    by_name: dict[str, list[int]] = {}
    for place, run in enumerate(runs):
        by_name.setdefault(run.label, []).append(place)
    labels = [run.label for run in runs]
    for name, places in by_name.items():
        if len(places) > 1:
            texts = _distinguished([runs[place] for place in places], without)
            for place, text in zip(places, texts, strict=True):
                labels[place] = f"{name} · {text}"
    return labels


def _distinguished(runs: Sequence[RunRecord], without: Sequence[str]) -> list[str]:
    facts = [_facts(run, without) for run in runs]
    names = list(dict.fromkeys(name for found in facts for name in found))

    def rank(name: str) -> tuple[int, int]:
        if not any(name in run.given_options for run in runs):
            return 2, 0
        lacking = any(run.given_options.get(name) is None for run in runs)
        return int(lacking), _FIRST.index(name) if name in _FIRST else len(_FIRST)

    names.sort(key=rank)
    columns = {name: [found.get(name) for found in facts] for name in names}
    # An ε that is simulated is another thing than one that is not: that is always said.
    chosen = [_MODE] if len(set(columns[_MODE])) > 1 else []

    def kinds(also: str | None = None) -> int:
        taken = [*chosen, *([] if also is None else [also])]
        return len(set(zip(*(columns[name] for name in taken), strict=True))) if taken else 1

    for group in (0, 1, 2):  # an option that some lack only tells apart those that have it
        among = [name for name in names if rank(name)[0] == group]
        while kinds() < len(runs) and len(chosen) < _MOST:
            best = max(among, key=kinds, default=None)
            if best is None or kinds(best) == kinds():
                break
            chosen.append(best)
    named = [name for name in names if name in chosen]
    texts = [
        ", ".join(f"{name} {values[name]}" for name in named if name in values)
        or ", ".join(f"{name} none" for name in named)
        for values in facts
    ]
    return [
        text if texts.count(text) == 1 else ", ".join(filter(None, (text, _folder(runs, place))))
        for place, text in enumerate(texts)
    ]


def _folder(runs: Sequence[RunRecord], place: int) -> str:
    """Return a run's folder: its name, or its whole path where another one has that name."""
    names = [run.directory.resolve().name for run in runs]
    return names[place] if names.count(names[place]) == 1 else str(runs[place].directory)


def _facts(run: RunRecord, without: Sequence[str]) -> Mapping[str, str]:
    """Return what can tell a run from another: options first."""
    options = {
        name: exact(value)
        for name, value in run.given_options.items()
        if value is not None and name not in _LEFT_OUT and name not in without
    }
    corpus, versions = run.corpus, run.description.get("versions")
    made = " (synthetic)" if run.synthetic else ""
    return options | {
        "backend": str(run.backend),
        _MODE: "simulated" if run.simulated else "secure",
        "on": f"{corpus.get('name') or 'own data'}{made}",
        "roster": str(corpus.get("roster")),
        "users": str(corpus.get("num_users")),
        "fedpriv": str(versions.get("fedpriv")) if isinstance(versions, dict) else "",
    }


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
        run, part = self.groups[0].head, self.groups[0].part
        name = run.corpus.get("name") or "own data"
        facts = [*([name] if part and part != name else []), *(["synthetic"] * run.synthetic)]
        made = f" ({', '.join(facts)})" if facts else ""
        held_out = f", {run.held_out}" if run.held_out else ""
        return f"{part or name}{made}{held_out}"

    @property
    def headline(self) -> Measure | None:
        """Headline measure of its tasks."""
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
        """Value of public-only over seeds; without an interval where it is the same for all.

        Runs of one seed are one sample of it: they share its public model.
        """
        measure = self.headline
        if measure is None:
            return None
        by_seed: dict[object, list[float | None]] = {}
        for run in (run for group in self.groups for run in group.runs):
            seed = run.options.get("seed") if run.simulated else None
            by_seed.setdefault(seed, []).append(run.public_only(measure))
        means = [estimate(values) for values in by_seed.values()]
        found = estimate([one.mean for one in means if one is not None])
        return found and replace(found, half_width=found.half_width or None)

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


def nouns_of(section: Section) -> UnitWords:
    """Return the nouns of those whose values a section has."""
    return words_of_all(group.head.words for group in section.groups)


def sections_of(groups: Sequence[Group]) -> list[Section]:
    """Return groups that measure one thing on one split of a corpus, in the order given."""
    found: dict[tuple[object, ...], list[Group]] = {}
    for group in groups:
        run = group.head
        headline = run.figures[0] if run.figures else None
        key = (headline, group.part, repr(run.corpus.get("name")), run.synthetic, run.held_out)
        found.setdefault(key, []).append(group)
    return [Section(groups=tuple(members)) for members in found.values()]


# Options that only say how much ε is spent: runs that differ in nothing else are one curve.
_SPENDING = ("seed", "noise.target_epsilon", "noise.multiplier")


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Groups that differ in ε alone, or were given one label.

    Attributes:
        label: What names it among the curves that it is compared with.
        groups: At least one, in the order given.
        colour: A role of the theme.
        marker: Its shape, as matplotlib names it: another one where colours come again.
    """

    label: str
    groups: tuple[Group, ...]
    colour: str
    marker: str


def curves_of(groups: Sequence[Group]) -> list[Curve]:
    """Return groups as curves, in the order given."""
    found: dict[object, list[Group]] = {}
    for group in groups:
        found.setdefault(_key(group), []).append(group)
    heads = [members[0] for members in found.values()]
    labels = labels_of_runs([group.head for group in heads], without=_SPENDING)
    labels = [group.method or label for group, label in zip(heads, labels, strict=True)]
    return [
        Curve(
            label=label,
            groups=tuple(members),
            colour=series(place),
            marker=_marker(place // NUM_SERIES),
        )
        for place, (label, members) in enumerate(zip(labels, found.values(), strict=True))
    ]


def styles(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """Return colour and marker of each group against rounds and in tables.

    Groups of one curve have its colour, and each a marker of its own.
    """
    curves = curves_of(groups)
    longest = max(len(curve.groups) for curve in curves)
    found = {
        id(group): (curve.colour, _marker(place // NUM_SERIES * longest + number))
        for place, curve in enumerate(curves)
        for number, group in enumerate(curve.groups)
    }
    return [found[id(group)] for group in groups]


def _marker(number: int) -> str:
    return MARKERS[number % len(MARKERS)]


def _key(group: Group) -> object:
    if group.method:
        return group.method, group.finished
    if label := group.head.description.get("label"):
        return label, group.finished
    if group.head.user_loop is not None:  # nothing says in what it differs
        return str(group.head.directory)
    options = {k: v for k, v in group.head.given_options.items() if k not in _SPENDING}
    return group.name, repr(sorted(options.items())), group.finished, group.head.simulated
