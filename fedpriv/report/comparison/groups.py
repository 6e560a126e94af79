"""Groups of runs that differ in their seed only: their names, sections, curves and differences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.measures import Measure, UserSums
from fedpriv.privacy.epsilon import rounded_up
from fedpriv.privacy.plan import UnitWords
from fedpriv.privacy.statement.coverage import Coverage
from fedpriv.report.charts import MARKERS, Reference
from fedpriv.report.estimate import (
    FEWEST_SEEDS,
    FEWEST_USERS,
    Estimate,
    estimate,
    over_users,
    read_user_sums,
    same_clusters,
)
from fedpriv.report.head import privacy_terms
from fedpriv.report.page import same_experiment_key
from fedpriv.report.run_record import Row, RunRecord, read_run, spent, total_epsilon
from fedpriv.report.theme import NUM_SERIES, series
from fedpriv.report.wording import exact, figure, number, words_of_all


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
        over_users: Whether its intervals are over users and seeds, and so of the headline and its
            gain alone; else over seeds. It is the same for all that are read side by side.
    """

    runs: tuple[RunRecord, ...]
    label: str
    method: str = ""
    part: str = ""
    target: float | None = None
    seconds: tuple[float | None, ...] = ()
    by_user: tuple[UserSums | None, ...] = field(default=(), repr=False)
    over_users: bool = False
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
        given = self.head.options.get("target_epsilon")
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
            sums = [one and one.gain(self.head.figures[0]) for one in self.by_user]
            self._measured["gain"] = self._over_users(found, sums)
        return self._measured["gain"]

    @property
    def knows_users(self) -> bool:
        """Whether users were measured one by one, on the same examples in every run."""
        counts = [one.count for one in self.by_user if one is not None]
        return len(counts) == len(self.runs) and len(same_clusters(counts)) >= FEWEST_USERS

    @property
    def public_model(self) -> str:
        """A remark where selection returned a model that public examples alone made, or ""."""
        number = sum(run.returns_public for run in self.runs)
        if not number:
            return ""
        every = number == len(self.runs)
        return "this is the public model" + (
            "" if every else f" in {number} of {len(self.runs)} runs"
        )

    def measure(self, column: Column) -> Estimate | None:
        """Return mean and interval of a measure of the models that runs return."""
        if column.key not in self._measured:
            found = estimate([run.reached(column.key, column.rows(run)) for run in self.runs])
            headline = column.diagnosed and column.measure in self.head.figures[:1]
            sums = [one and one.value for one in self.by_user] if headline else []
            self._measured[column.key] = self._over_users(found, sums)
        return self._measured[column.key]

    def _over_users(
        self, found: Estimate | None, sums: Sequence[np.ndarray | None]
    ) -> Estimate | None:
        """Return an estimate with an interval over users, where it is to have one of that kind."""
        if found is None or not self.over_users:
            return found
        counts = [one.count for one in self.by_user if one is not None]
        return over_users(found, counts, [one for one in sums if one is not None])


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
            run_id = run.state.run_id
        except (OSError, ValueError) as error:
            left_out.append(str(error))
            continue
        if run_id in runs:
            other = runs[run_id].folder
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
    return measured_by_user(
        Group(runs=tuple(others), label=label) for others, label in zip(found, labels, strict=True)
    )


def measured_by_user(groups: Iterable[Group]) -> list[Group]:
    """Return groups with their users' sums, and with intervals of one kind within each section.

    Those are over users and seeds where each user of every run was measured.

    """
    groups = [
        replace(group, by_user=tuple(read_user_sums(run) for run in group.runs)) for group in groups
    ]
    over_users = {
        id(group)
        for section in sections_of(groups)
        if all(one.knows_users for one in section.groups) and _same_users(section.groups)
        for group in section.groups
    }
    return [replace(group, over_users=id(group) in over_users) for group in groups]


def _same_users(groups: Sequence[Group]) -> bool:
    """Return whether all runs were measured on the same users' examples."""
    rosters = {run.corpus.get("roster_sha256") for group in groups for run in group.runs}
    counts = [one.count for group in groups for one in group.by_user if one is not None]
    return len(rosters) == 1 and len(same_clusters(counts)) > 0


def _sample_key(run: RunRecord) -> tuple[object, ...]:
    # Nothing says in what user-defined loops differ: each is a group of its own.
    alone = None if run.user_loop is None else str(run.folder)
    return (*same_experiment_key(run), run.label, run.finished, alone)


def _backend(run: RunRecord) -> object:
    return run.backend


def _same_seed(one: RunRecord, other: RunRecord) -> bool:
    """Return whether two runs drew the same; secure ones have no seed, and never did."""
    return one.simulated and one.options.get("seed") == other.options.get("seed")


def differences(columns: Sequence[Sequence[Group]]) -> dict[str, list[str]]:
    """Return the options in which groups differ, each with a text for every column.

    Where an option has several values within a column, as one that is chosen from the data's size
    may, the text has all of them, with the ε that each is of.

    Args:
        columns: Groups of one column: one alone, or a method at each ε.
    """
    groups = [group for column in columns for group in column]
    names = dict.fromkeys(name for g in groups for run in g.runs for name in run.described_options)
    found = {}
    for name in names:
        if name in ("seed", "name", "description"):
            continue
        values = [_values(name, column) for column in columns]
        texts = [_text_of(one) for one in values]
        if len(set(texts)) > 1 or any(len(set().union(*one.values())) > 1 for one in values):
            found[name] = texts
    heads = [column[0].head for column in columns]
    modes = ["simulated" if head.simulated else "secure" for head in heads]
    # No option: what a device computes differs in its last bits, and so do models.
    devices = [head.device or "none" for head in heads]
    found |= {"device": devices} if len(set(devices)) > 1 else {}
    return {"mode": modes, **found} if len(set(modes)) > 1 else found


def _values(name: str, column: Sequence[Group]) -> dict[float, dict[str, Any]]:
    """Return the values of an option in a column by ε: as text, and as they are."""
    private = [group for group in column if group.head.private]
    # That runs without privacy have no noise, the ε says.
    of_noise = name.partition(".")[0] in ("noise", "output_noise", "target_epsilon")
    found: dict[float, dict[str, Any]] = {}
    for group in (private or column) if of_noise else column:
        for run in group.runs:
            value = run.described_options.get(name)
            found.setdefault(group.level, {})[exact(value)] = value
    return found


def _text_of(values: Mapping[float, Mapping[str, Any]]) -> str:
    """Return an option's values in a column, with the ε that each is of where they differ."""
    every = {text: value for some in values.values() for text, value in some.items()}
    short = {text: _rounded(text, value) for text, value in every.items()}
    if len(set(short.values())) < len(short) or len(short) == 1:
        short = {text: text for text in short}
    at: dict[str, list[float]] = {}
    for level, some in values.items():
        at.setdefault(" or ".join(short[text] for text in some), []).append(level)
    if len(at) == 1:
        return next(iter(at))
    return ", ".join(f"{text} at {levels_in_words(levels)}" for text, levels in at.items())


def _rounded(text: str, value: Any) -> str:
    long = isinstance(value, float) and len(text.strip("-0.").replace(".", "")) > _DIGITS
    return number(value, 3) if long else text


_DIGITS = 6  # that a value may have which somebody typed


def levels_in_words(levels: Sequence[float]) -> str:
    """Return levels of ε in words.

    >>> levels_in_words([2.0, 8.0]), levels_in_words([math.inf])
    ('ε 2 and 8', 'no privacy')
    """
    private = [f"{level:g}" for level in levels if math.isfinite(level)]
    none = ["no privacy"] if len(private) < len(levels) else []
    return listed([*([f"ε {listed(private)}"] if private else []), *none])


def listed(texts: Sequence[str]) -> str:
    """Return texts as a list in a sentence.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    *some, last = texts
    return f"{', '.join(some)} and {last}" if some else last


def public_counts(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return how many public users and examples a task has, by its description, for `unlike`."""
    return {f"public-{name}": described.get(f"num_public_{name}") for name in ("users", "examples")}


def unlike(methods: Mapping[str, Mapping[str, Any]]) -> str:
    """Return in a sentence how methods differ besides the way in which they train on users.

    That is where they start, which of their models they return, and on what public data: a model
    of public examples alone may win a comparison of methods that differ in these.

    Args:
        methods: Options of each method by its label; what was chosen from the data's size left out.

    Returns:
        "" where they do not differ.
    """
    names = dict.fromkeys(name for options in methods.values() for name in options)
    kinds: dict[str, list[str]] = {}
    for name in names:
        what = _APART.get(name.partition(".")[0] if name.startswith("start.") else name)
        what = _PUBLIC if what is None and name.startswith(("task.public", "public")) else what
        if what is None:
            continue
        values: dict[str, list[str]] = {}
        for method, options in methods.items():
            value = options.get(name)
            value = _ABSENT.get(name) if value is None else value
            values.setdefault(exact(value), []).append(method)
        if len(values) > 1:
            short = name.removeprefix("task.").replace("_", "-")
            of = [f"{value} for {listed(some)}" for value, some in values.items()]
            kinds.setdefault(what, []).append(f"{short} is {', '.join(of)}")
    if any(text.startswith("start is ") for text in kinds.get(_START, ())):
        kinds[_START] = kinds[_START][:1]  # how to start follows
    if not kinds:
        return ""
    order = [what for what in (_START, _RETURN, _PUBLIC) if what in kinds]
    details = "; ".join(text for what in order for text in kinds[what])
    return (
        f"the methods differ in {listed(order)}, so that their figures do not compare the "
        f"methods alone: {details}."
    )


_START, _RETURN, _PUBLIC = "how they start", "which model they return", "their public data"
_APART = {"start": _START, "task.select": _RETURN}
_ABSENT = {"start": "fresh", "task.select": "last"}


def shared_options(groups: Sequence[Group]) -> dict[str, str]:
    """Return the options that are the same in every run, seeds among them."""
    first, *others = (run.described_options for group in groups for run in group.runs)
    return {
        name: exact(value)
        for name, value in first.items()
        if name not in ("name", "description")
        and all(name in options and options[name] == value for options in others)
    }


def mismatches(groups: Sequence[Group]) -> list[str]:
    """Return why figures of the groups must not be read against each other."""
    guarantees = [total_epsilon(group.head) for group in groups if group.head.private]
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


def interval_words(section: Section) -> str:
    """Return what every interval of a section is, in words; "" where it has none."""
    groups = section.groups
    if groups[0].over_users:
        several = any(len(group.runs) > 1 for group in groups)
        return f"95 % interval of a bootstrap over users{' and seeds' if several else ''}"
    return "95 % t-interval over seeds" if any(map(_enough_seeds, groups)) else ""


def _enough_seeds(group: Group) -> bool:
    return len(group.runs) >= FEWEST_SEEDS


def spread_note(section: Section) -> str:
    """Return what ± is in a section, or why there is none, in a sentence or two."""
    groups, words = section.groups, interval_words(section)
    few = f"fewer than {FEWEST_SEEDS} seeds have no t-interval"
    if not words:
        return f"No ±: {few}." if any(len(group.runs) > 1 for group in groups) else ""
    said = f"± is half a {words}"
    if not groups[0].over_users:
        return said + ("." if all(map(_enough_seeds, groups)) else f"; {few}.")
    columns = [c for c in columns_of(groups) if any(group.measure(c) for group in groups)]
    name = section.headline.label if section.headline else ""
    return said + (f", of {name} and its gain alone." if len(columns) > 1 else ".")


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
    "target_epsilon", "method", "start", "precondition", "noise", "bound", "sampling",
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
    names = [run.folder.resolve().name for run in runs]
    return names[place] if names.count(names[place]) == 1 else str(runs[place].folder)


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
        lead = self.lead
        if lead is None:
            return None
        public = not lead.diagnosed
        known = {g.head.baseline(lead.measure, public=public) for g in self.groups} - {None}
        return known.pop() if len(known) == 1 else None

    @property
    def public_only(self) -> Estimate | None:
        """Value of public-only over seeds, with an interval of the same kind as the methods'.

        Runs of one seed are one sample of it: they share its public model. Over seeds it has no
        interval where it is the same for all.
        """
        measure = self.headline
        if measure is None:
            return None
        by_seed: dict[object, list[float | None]] = {}
        sums: dict[object, list[UserSums]] = {}
        for group in self.groups:
            users = group.by_user or [None] * len(group.runs)
            for run, of_users in zip(group.runs, users, strict=True):
                seed = run.options.get("seed") if run.simulated else None
                by_seed.setdefault(seed, []).append(run.public_only(measure))
                if of_users is not None and of_users.public_value is not None:
                    sums.setdefault(seed, []).append(of_users)
        means = [estimate(values) for values in by_seed.values()]
        found = estimate([one.mean for one in means if one is not None])
        if found is None or not self.groups[0].over_users:
            return found and replace(found, interval=found.interval if found.half_width else None)
        counts = [one.count for some in sums.values() for one in some[:1]]
        values = [
            np.mean([one.public_value for one in some if one.public_value is not None], axis=0)
            for some in sums.values()
        ]
        return over_users(found, counts if len(counts) == len(means) else [], values)

    @property
    def public_only_note(self) -> str:
        """A sentence where public-only is another value for some groups than for others, or ""."""
        if self.headline is None:
            return ""
        values: dict[str, list[str]] = {}
        for group in self.groups:
            if (found := group.public_only) is not None:
                values.setdefault(figure(self.headline, found.mean), []).append(group.label)
        if len(values) < 2:
            return ""
        said = ", ".join(f"{value} for {listed(labels)}" for value, labels in values.items())
        return (
            "Public-only is trained for each run, with the run's own seed, options and public "
            f"examples: {said}. Each gain is over the run's own; elsewhere it is their mean."
        )

    @property
    def unlike(self) -> str:
        """A sentence on how its methods differ besides training on users, or ""; see `unlike`."""
        methods: dict[str, dict[str, Any]] = {}
        for curve in curves_of(self.groups):
            head = curve.groups[0].head
            methods[curve.label] = {**head.given_options, **public_counts(head.corpus)}
        return unlike(methods)

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
_SPENDING = ("seed", "target_epsilon", "noise.multiplier")


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
        return str(group.head.folder)
    options = {k: v for k, v in group.head.given_options.items() if k not in _SPENDING}
    return group.name, repr(sorted(options.items())), group.finished, group.head.simulated
