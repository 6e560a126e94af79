"""The head of the report: ε first, then the results, what went wrong, and where they came from."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpriv.measures import Measure, UserSums
from fedpriv.privacy.epsilon import format_delta, format_rdp
from fedpriv.privacy.ledger.ledger import STARTED
from fedpriv.privacy.plan import unit_name
from fedpriv.privacy.statement.coverage import NO_NOISE, public_only_of
from fedpriv.privacy.statement.statement import (
    Statement,
    describe_returned_model,
    describe_weights,
    name_data,
)
from fedpriv.report.estimate import FEWEST_SEEDS, Estimate, estimate, over_users, read_user_sums
from fedpriv.report.run_record import RunRecord, spent, total_epsilon
from fedpriv.report.wording import NOTHING, difference, direction, epsilon, figure, number
from fedpriv.untrusted_text import plain

Figure = tuple[str, str, list[str]]
"""Name, value and remarks of a key figure."""
NO_GAIN = "No gain over public examples"
"""Badge of a run that returns a model of public examples alone."""


def badges(run: RunRecord, statement: Statement) -> list[tuple[str, bool]]:
    """Return labels of a run, each with whether it is a warning."""
    found: list[tuple[str, bool]] = []
    if run.synthetic:
        found.append(("Synthetic data", True))
    if not run.private:
        found.append(("Not private", True))
    elif statement.no_meaningful_protection:
        found.append(("No meaningful protection", True))
    if statement.audit is not None and statement.audit.refuted:
        found.append(("Refuted by its audit", True))
    if statement.not_covered:
        found.append(("ε does not cover everything", True))
    if run.simulated:
        found.append(("Simulated", False))
    if run.rounds_planned is not None and run.rounds_done < run.rounds_planned:
        turn = run.words.turn
        ended = run.summary.get("stopped_early") == "target-epsilon"
        why = ", stopped at the target ε" if ended else ""
        text = f"{run.rounds_done:,} of {run.rounds_planned:,} {turn}s{why}"
        found.append((text if run.finished else f"Unfinished: {text}", not run.finished))
    elif not run.finished:
        found.append(("Unfinished", True))
    if run.returns_public:
        found.append((NO_GAIN, True))
    if failed := run.summary.get("rounds_mostly_failed"):
        turns = counted(failed, run.words.turn)
        found.append((f"Most {run.words.contributor}s failed in {turns}", True))
    return found


def result_rows(
    run: RunRecord, statement: Statement, most: int | None = None
) -> list[tuple[str, str]]:
    """Return what came of a run, as rows of a label and a text, for a terminal.

    What it returns, its figures as far as they were measured, who failed, its ε, and its data.

    Args:
        run: The run.
        statement: Its privacy statement.
        most: How many figures there are at most; None for all.
    """
    returned, no_gain = describe_returned_model(run.summary)
    rows = [("NO GAIN" if no_gain else "returned", returned)] if returned else []
    figures = [figure for figure in key_figures(run)[1:] if figure[1] != NOTHING][:most]
    if run.summary.get("users_failed"):
        figures.append(failures_figure(run))
    rows += [(name.lower(), f"{value} ({'; '.join(about)})") for name, value, about in figures]
    rows.append(("privacy", statement.headline))
    _, done, about = rounds_figure(run)
    if seconds := run.summary.get("seconds_per_round"):
        about = [f"{seconds:.2g} s each", *about]
    data = name_data(run.corpus, run.unit)
    rows.append(("trained", f"{done} {run.words.turn}s on {data} ({'; '.join(about)})"))
    if used := describe_weights(run.corpus):
        rows.append(("weights", used))
    return rows


def privacy_terms(run: RunRecord) -> list[str]:
    """Return what an ε is meaningless without: δ, relation, unit, accountant."""
    if not run.private:
        reason = run.coverage.reason
        return [
            "no noise was added: there is no guarantee for anyone" if reason == NO_NOISE else reason
        ]
    guarantee = total_epsilon(run)
    return [
        f"δ = {format_delta(guarantee.delta)}",
        f"{guarantee.relation.value} relation",
        f"unit: {guarantee.unit}",
        f"{guarantee.accountant} accountant",
    ]


def key_figures(run: RunRecord, replicates: Sequence[RunRecord] = ()) -> list[Figure]:
    """Return (name, value, remarks) of the head of the report: ε, the gain, then what is measured.

    Args:
        run: The run.
        replicates: Further runs of the same experiment with other seeds.
    """
    runs = [run, *replicates]
    users = _user_sums(runs)
    figures = [_epsilon_figure(run, runs), *_gain_figure(run, runs, users)]
    for place, measure in enumerate(run.figures):
        rostered = estimate([r.reached(measure.name, r.diagnosed) for r in runs])
        if place == 0:
            rostered = _with_interval(rostered, users, [one.value for one in users])
        released = estimate([r.reached(measure.released_name, r.released) for r in runs])
        if place == 0:
            figures += _headline_figures(run, measure, rostered, released)
            continue
        nouns, found = run.words, released if rostered is None else rostered
        if found is None:
            continue
        where = f"{nouns.tested}s; not covered by ε"
        if rostered is None:
            where = f"{nouns.public}s; {nouns.publicity}"
        remarks = [*_interval_remark(found, measure), where, *_of_which(run), *_direction(measure)]
        figures.append((measure.title, figure(measure, found.mean), remarks))
    return figures


def _user_sums(runs: Sequence[RunRecord]) -> list[UserSums]:
    """Return the sums by user of all runs; none where those of one are not known."""
    found = [sums for run in runs if (sums := read_user_sums(run)) is not None]
    return found if len(found) == len(runs) else []


def _with_interval(
    found: Estimate | None, users: Sequence[UserSums], values: Sequence[np.ndarray | None]
) -> Estimate | None:
    """Return an estimate with an interval over users, where they were measured one by one."""
    known = [value for value in values if value is not None]
    if found is None or not users or len(known) < len(users):
        return found
    clustered = over_users(found, [one.count for one in users], known)
    return clustered if clustered.by_user else found


def _gain(runs: Sequence[RunRecord], users: Sequence[UserSums]) -> Estimate | None:
    found = estimate([run.gain for run in runs])
    return _with_interval(found, users, [one.gain(runs[0].figures[0]) for one in users])


def _epsilon_figure(run: RunRecord, runs: Sequence[RunRecord]) -> Figure:
    most = max((spent(r) for r in runs), key=float)
    mark = run.coverage.mark
    remarks = [mark, *privacy_terms(run)] if mark else privacy_terms(run)
    if most.rdp is not None and most.accountant != "RDP":
        remarks.append(f"by RDP {format_rdp(most.rdp)}")
    if run.private and len(runs) > 1:
        remarks.append("of each run alone; together they spend more")
    return "ε", epsilon(most.value), remarks


def _gain_figure(
    run: RunRecord, runs: Sequence[RunRecord], users: Sequence[UserSums]
) -> list[Figure]:
    """Return the gain over public-only, or that nothing is claimed of it."""
    if not run.figures:
        return []
    measure, name = run.figures[0], "Gain over public-only"
    gain = _gain(runs, users)
    public_only = estimate([r.public_only(measure) for r in runs])
    remarks = ["public-only not measured"]
    if public_only is not None:
        remarks = [
            f"public-only {figure(measure, public_only.mean)}, "
            + (f"of {whom}" if (whom := public_only_of(run.options)) else "at ε = 0"),
            f"{measure.label} on the same examples",
        ]
    if gain is None:
        return [(name, NOTHING, remarks)]
    ends = [difference(measure, end) for end in gain.interval or ()]
    remarks = _over_seeds(gain, ends) + remarks
    if gain.count == 1 and (gain.by_user or not run.selection):
        none = "" if gain.by_user else ", no interval"
        remarks.append(f"one run{none}: other noise may move it")
    if unit_name(run.unit) == "user" and run.simulated:
        remarks.append("a diagnostic, not covered by ε")
    return [(name, difference(measure, gain.mean) if gain.mean else "none", remarks)]


def _headline_figures(
    run: RunRecord, measure: Measure, rostered: Estimate | None, released: Estimate | None
) -> list[Figure]:
    """Return the headline measure's figures: of rostered users, and of public ones."""
    figures: list[Figure] = []
    users, public = run.corpus.get("num_users"), run.corpus.get("num_public_users")
    nouns = run.words
    of_users = unit_name(run.unit) == "user"
    if rostered is not None:
        held_out = of_users and run.num_test_examples is None
        number = users if run.num_test_examples is None else run.num_test_examples
        remarks = [
            ("held-out examples of " if held_out else "measured on ")
            + counted(number, nouns.tested),
            "a diagnostic, not covered by ε",
            *_of_which(run),
            *_direction(measure),
        ]
        remarks += _majority(run, measure, public=False)
        text = figure(measure, rostered.mean)
        figures.append((measure.title, text, _interval_remark(rostered, measure) + remarks))
    if released is not None:
        whom = "public examples" if of_users else "the test set"
        if of_users and public:  # a task may have examples, and not know of how many
            whom = counted(public, nouns.public)
        remarks = [f"measured on {whom}", nouns.publicity, *_of_which(run), *_direction(measure)]
        remarks += _majority(run, measure, public=True)
        title = f"{measure.title}, {nouns.public}s" if rostered else measure.title
        text = figure(measure, released.mean)
        figures.append((title, text, _interval_remark(released, measure) + remarks))
    return figures


def _majority(run: RunRecord, measure: Measure, *, public: bool) -> list[str]:
    value = run.baseline(measure, public=public)
    return [] if value is None else [f"majority class {figure(measure, value)}"]


def _of_which(run: RunRecord) -> list[str]:
    return ["of the returned model"] if run.selection else []


def _direction(measure: Measure) -> list[str]:
    return [direction(measure)] if direction(measure) else []


def _interval_remark(value: Estimate, measure: Measure) -> list[str]:
    return _over_seeds(value, [figure(measure, end) for end in value.interval or ()])


def _over_seeds(value: Estimate, ends: Sequence[str]) -> list[str]:
    """Return what a value is the mean of, with the ends of its interval as texts, if it has one."""
    several = value.count > 1
    remarks = [f"mean over {value.count} seeds"] if several else []
    if ends:
        low, high = ends
        low = low.removesuffix(" points").removesuffix("\u202f%")
        over = "t-interval over seeds"
        if value.by_user:
            over = f"interval over users{' and seeds' if several else ''}"
        remarks.append(f"95\u202f% {over} {low} to {high}")
    elif several:
        remarks.append(f"no interval of fewer than {FEWEST_SEEDS} seeds")
    return remarks


def counted(value: object, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1; the noun alone for None."""
    if value is None:
        return f"{noun}s"
    shown = f"{value:,}" if isinstance(value, int) else number(value)
    return f"{shown} {noun}{'' if value == 1 else 's'}"


# Options that are a text or absent, as they are by default: "none" would be the text.
_TEXTS = ("task.roster", "start.file", "task.log", "task.folder")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Facts that are needed to repeat the run, and to check that its ledger is whole.

    Attributes:
        date: When it was started; a trial of a private selection does not say.
        seed: Its seed, or that it had none.
        command: What runs it again, every option given; None where no single command does.
        short_command: Its beginning, or why there is none.
        version: Of fedpriv.
        ledger_head: Hash of the ledger's last line.
    """

    date: str
    seed: str
    command: str | None
    short_command: str
    version: str
    ledger_head: str


def provenance_of(run: RunRecord) -> Provenance:
    """Return where a run came from.

    Raises:
        ValueError: If its ledger is missing or damaged.
    """
    versions = run.description.get("versions")
    found = versions.get("fedpriv") if isinstance(versions, dict) else None
    command, short = _command(run)
    return Provenance(
        date=str(run.state.extra.get(STARTED, NOTHING)),
        seed=str(run.options.get("seed", NOTHING)) if run.simulated else "none: a secure run",
        command=command,
        short_command=short,
        version=f"fedpriv {found}" if found else NOTHING,
        ledger_head=run.records[-1].hash,
    )


def _command(run: RunRecord) -> tuple[str | None, str]:
    """Return the command with every option, and its beginning.

    Defaults change from version to version; what is given in full does not.
    """
    if run.user_loop is not None:
        return None, "a user-defined training loop: no command"
    reference, backend = run.description.get("reference"), run.description.get("backend")
    if backend == "flower":
        return None, "run by Flower: no single command"
    if not isinstance(reference, str):
        return None, "made from Python: no command"
    short = ["fedpriv", "run", reference]
    if backend not in (None, "serial"):
        short += ["--backend", str(backend)]
    if run.device is not None:
        short += ["--device", run.device]
    if not run.simulated:
        short.append("--secure")
    whole = list(short)
    if path := run.corpus.get("path"):
        key = run.corpus.get("data_key")
        whole += ["--corpus", str(path)] if key is None else ["--data", path, "--data-key", key]
    for name, value in run.options.items():
        absent = name in _TEXTS and value is None
        if not absent and (name != "seed" or run.simulated):
            whole += ["-s", f"{name}={_typed(value)}"]
    return shlex.join(whole), shlex.join(short)


def _typed(value: object) -> str:
    """Return an option's value as `-s` takes it."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def head_of(
    run: RunRecord, statement: Statement, replicates: Sequence[RunRecord] = ()
) -> dict[str, Any]:
    """Return title, badges, key figures and provenance, as the template of a report has them."""
    found = key_figures(run, replicates)
    # What the run is judged by, then whether it went as planned, then its other figures.
    judged = 2 if len(found) > 1 and found[1][0].startswith("Gain") else 1
    returned, _ = describe_returned_model(run.summary)
    about = ": ".join(filter(None, ("" if run.label == run.name else run.name, run.about)))
    return {
        "badges": badges(run, statement),
        "returned": returned,
        "spent_all_the_same": run.spent_all_the_same,
        "leads": [*([about] if about else []), " · ".join(_where(run))],
        "figures": [*found[:judged], failures_figure(run), rounds_figure(run), *found[judged:]],
        "provenance": provenance_of(run),
    }


def failures_figure(run: RunRecord) -> Figure:
    """Return how many of those who were drawn failed; a secure run records none of it."""
    rows = run.diagnosed_attempts
    nouns, title = run.words, "Failures"
    if not rows:
        why = "a secure run records none" if not run.simulated else "none recorded yet"
        return title, NOTHING, [why]
    failed = sum(int(row.get("num_failed") or 0) for row in rows)
    drawn = sum(int(row.get("cohort_size") or 0) for row in rows)
    whom = f"of {counted(drawn, nouns.contributor)} drawn"
    if run.unit != "user":
        whom += f" in the recorded {nouns.turn}s"
    remarks = [whom, "a diagnostic, not covered by ε"]
    if failed:
        remarks.insert(1, "they contributed zero")
        cause = run.summary.get("first_failure")
        remarks.insert(2, f"a cause: {plain(cause)}" if cause else "the log has their causes")
    if mostly := run.summary.get("rounds_mostly_failed"):
        remarks.insert(1, f"more than half in {counted(mostly, nouns.turn)}")
    return title, number(failed), remarks


def rounds_figure(run: RunRecord) -> Figure:
    """Return how many rounds were released of those planned, and why others are missing."""
    turn, planned, done = run.words.turn, run.rounds_planned, run.rounds_done
    title = f"{turn.capitalize()}s"
    remarks = []
    if planned is None:
        text = number(done)
        remarks.append("none were planned" if run.finished else "unfinished")
    else:
        text = f"{done:,} of {planned:,}"
        missing = max(0, planned - done)
        remarks.append(f"{missing:,} missing: {_why(run)}" if missing else "none missing")
    redone = sum(charge.attempt > 1 for charge in run.state.charges)
    if redone and run.summary.get("stopped_early") != "lost-attempts":
        remarks.append(f"{counted(redone, 'attempt')} redone, each charged")
    return title, text, remarks


def _why(run: RunRecord) -> str:
    if not run.finished:
        return "unfinished"
    return {
        "target-epsilon": "one more would exceed the target ε",
        "lost-attempts": "attempts that were interrupted, and redone, used up their charges",
        "nothing-left": "the algorithm had nothing left to ask",
    }.get(str(run.summary.get("stopped_early")), "ended early")


def _where(run: RunRecord) -> list[str]:
    corpus = run.corpus
    parts = []
    if corpus.get("name"):
        parts.append(f"{corpus['name']}{' (synthetic)' if run.synthetic else ''}")
    if corpus.get("roster") and unit_name(run.unit) == "user":
        parts.append(f"roster {corpus['roster']}")
    if run.held_out:
        parts.append(run.held_out)
    if corpus.get("num_users"):
        parts.append(counted(corpus["num_users"], run.words.total))
    return parts
