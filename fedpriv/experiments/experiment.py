"""Experiments: one frozen value says everything about a run; `build` makes its components of it.

An experiment is a Python function that returns an `Experiment`; most derive theirs from another by
`with_options` or `dataclasses.replace`. It is composed of parts (`fedpriv.experiments.options`),
and an option exists only where its part is chosen. Options are given flat; their kebab-case names
are the same on the command line, in a run folder and in Flower's run-config.

>>> experiment = Experiment(name="demo", description="A demonstration.")
>>> experiment.with_options({"l2-clip-norm": 2, "bound": "normalise"}).l2_clip_norm
2.0
>>> experiment.with_options({"l2-clip-norms": 2})
Traceback (most recent call last):
    ...
ValueError: 'l2-clip-norms' is not an option of an experiment; did you mean 'l2-clip-norm'?
>>> experiment.with_options({"ema-decay": 0.5})
Traceback (most recent call last):
    ...
ValueError: ema-decay belongs to aggregate 'ema'; this experiment has aggregate 'none': set \
aggregate too, or leave ema-decay out
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from functools import partial
from typing import Any, Literal, Self

from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.experiments.examples import EXAMPLE_SLOTS
from fedpriv.experiments.options import (
    Option,
    OptionLine,
    Part,
    Slot,
    all_names,
    check_chosen,
    check_known,
    completed,
    compose,
    declared,
    kebab,
    option_lines,
    option_values,
)
from fedpriv.experiments.tasks import TAG_PREDICTION, TagPredictionTask
from fedpriv.experiments.users import USER_SLOTS
from fedpriv.mechanisms import Bound, preconditioners

Unit = Literal["user", "example"]
#: From an experiment and a corpus, or from an experiment alone, to its task.
TaskFactory = Callable[["Experiment", Corpus | None], Any] | Callable[["Experiment"], Any]

SLOTS: Mapping[Unit, tuple[Slot, ...]] = {
    "user": USER_SLOTS,
    "example": EXAMPLE_SLOTS,
}
#: Options that can be chosen from the data's size (`fedpriv.experiments.settings`).
AUTOMATIC = ("cohort", "rounds", "l2-clip-norm", "start-factor")
_BACKENDS: Mapping[Unit, tuple[str, ...]] = {
    "user": ("serial", "threads", "ray", "flower"),
    "example": ("serial",),
}


# No slots: a frozen class with slots has no words for an option that somebody assigns to.
@dataclass(frozen=True, init=False)
class Experiment:
    """Everything that decides a run.

    Its options are read as attributes: `experiment.l2_clip_norm`.

    Attributes:
        name: What `fedpriv run` calls it.
        description: One line for lists and reports.
        task: Makes the task from this experiment and a corpus, or None, or from this experiment
            alone. A frozen dataclass that can be called so declares options of its own: its fields.
        unit: Whom an update is of, and the ε: "user" (federated), or "example" (centralised).
        backends: Those that it claims to run on.
        statistics: Moments and preconditioner of one's own, for guide "public-own".
        refine: Makes the components that run of those that the options describe, for a privatizer,
            sampler, bound or preconditioner of one's own; None leaves them. It cannot replace the
            task and its trainer: workers and nodes make those for themselves.
        bounds: Bounds of one's own that `refine` puts in, by their names: what makes them of their
            fields. A node makes no bound but these and those of the options.
        values: Values of options by name, of parts that are not chosen too: they hold if such a
            part is chosen.
        parts: What is chosen.
        automatic: Options whose values are chosen from the data's size when components are built;
            until then they have the values that hold where nothing can be chosen.
    """

    name: str
    description: str
    task: TaskFactory = field(repr=False)
    unit: Unit
    backends: tuple[str, ...]
    statistics: preconditioners.Statistics | None = field(repr=False)
    refine: Callable[[Any], Any] | None = field(repr=False)
    bounds: Mapping[str, Callable[..., Bound]] = field(repr=False, hash=False)
    values: Mapping[str, Option] = field(repr=False, compare=False)
    automatic: tuple[str, ...] = field(compare=False)
    parts: tuple[Part, ...] = field(init=False)

    def __init__(
        self,
        *,
        name: str,
        description: str,
        task: TaskFactory | None = None,
        unit: Unit = "user",
        backends: tuple[str, ...] | None = None,
        statistics: preconditioners.Statistics | None = None,
        refine: Callable[[Any], Any] | None = None,
        bounds: Mapping[str, Callable[..., Bound]] | None = None,
        values: Mapping[str, Option] | None = None,
        presets: Mapping[str, Option] | None = None,
        automatic: Sequence[str] = (),
        **options: Any,
    ) -> None:
        """Compose an experiment.

        Args:
            name: As the attribute.
            description: As the attribute.
            task: As the attribute; None for tag prediction.
            unit: As the attribute.
            backends: As the attribute; None for all that there are of its unit.
            statistics: As the attribute.
            refine: As the attribute.
            bounds: As the attribute; None for none.
            values: Of another experiment, to begin with.
            presets: Values by option name that hold if their part is chosen, now or later.
            automatic: As the attribute; of "cohort", "rounds", "l2-clip-norm" and "start-factor".
                One that is given is not;
                `presets` say what holds where nothing can be chosen.
            **options: Options by name, with underscores; their parts must be chosen.

        Raises:
            ValueError: For an unknown option, one whose part is not chosen, a value that is not
                one of its option's or out of its range, or options that do not fit.
        """
        if unit not in SLOTS:
            raise ValueError(f"unit {unit!r} is not known; use one of {', '.join(SLOTS)}")
        if task is None:
            if unit == "example":
                raise ValueError(f"{name} needs task=..., which makes a CentralTask of examples")
            task = TagPredictionTask()
        slots = (*_task_slot(task, SLOTS[unit]), *SLOTS[unit])
        given = {kebab(option): value for option, value in options.items()}
        _check_task(task, given)
        check_known((TAG_PREDICTION, *slots), (*(presets or {}), *given))
        merged = {**(values or {}), **(presets or {}), **given}
        parts = compose(slots, merged)
        # None says that there is no such value, which is true of an option that is not there.
        said = (option for option, value in given.items() if value not in (None, "none"))
        check_chosen(slots, parts, said)
        merged |= {key: value for key, value in option_values(parts).items() if key in merged}
        unknown = set(automatic) - set(AUTOMATIC)
        if unknown:
            raise ValueError(
                f"automatic {sorted(unknown)[0]!r} cannot be chosen from the data's size; use some "
                f"of {', '.join(AUTOMATIC)}"
            )
        for part in parts:
            if part.slot is slots[0] and len(slots) > len(SLOTS[unit]):
                task = part.options
        for item, value in {
            "name": name,
            "description": description,
            "task": task,
            "unit": unit,
            "backends": _BACKENDS[unit] if backends is None else backends,
            "statistics": statistics,
            "refine": refine,
            "bounds": dict(bounds or {}),
            "values": merged,
            "automatic": tuple(
                name for name in automatic if name in option_values(parts) and name not in given
            ),
            "parts": parts,
        }.items():
            object.__setattr__(self, item, value)
        if self.has_part("noise") and self.noise != "none" and self.bound == "none":
            raise ValueError(
                f"noise {self.noise!r} without a bound protects no one; use bound 'clip' or "
                "'normalise', or noise 'none'"
            )

    def __getattr__(self, name: str) -> Any:
        """Return an option's value, or the choice of a slot."""
        if not name.startswith("_") and name != "parts":
            values, option = option_values(self.parts), kebab(name)
            if option in values:
                return values[option]
        raise AttributeError(f"this experiment has no option {kebab(name)!r}", name=name, obj=None)

    def part(self, slot: str) -> Any:
        """Return what is chosen of a slot, with its options as attributes."""
        return next(part.options for part in self.parts if part.name == slot)

    def has_part(self, slot: str) -> bool:
        """Return whether a slot is there: some are within choices of another only."""
        return any(part.name == slot for part in self.parts)

    def known_bounds(self) -> dict[str, Callable[..., Bound]]:
        """Return what makes the bounds that its requests may name: its option's, and its own."""
        if not self.has_part("bound"):
            return dict(self.bounds)
        chosen = self.part("bound").make()
        return {chosen.name: type(chosen), **self.bounds}

    def lines(self) -> tuple[OptionLine, ...]:
        """Return every option that exists, as it is listed."""
        return tuple(
            replace(line, value="automatic") if line.name in self.automatic else line
            for line in option_lines(self.parts)
        )

    def options(self) -> dict[str, Option]:
        """Return the value of every option that exists by its kebab-case name."""
        return option_values(self.parts)

    def field_names(self) -> dict[str, str]:
        """Return options by what they are called within: by fields, of their parts and of a plan.

        A plan's fields that no option sets, and those of a kind that is not in them, are left out.
        """
        names = {name.replace("-", "_"): name for name in option_values(self.parts)}
        return {name: typed for name, typed in names.items() if name != typed} | {
            "l2_bound": "l2-clip-norm"
        }

    def with_options(self, options: Mapping[str, Option]) -> Self:
        """Return the experiment with some options changed; parts may be chosen among them.

        Raises:
            ValueError: For an unknown option (with the nearest known one), one whose part is not
                chosen then (with the part), or an unfit value.
        """
        _check_task(self.task, options)
        check_known((*self._slots, TAG_PREDICTION), options)
        changes = dict(options)
        # A given noise replaces a calibrated one and the other way round.
        if changes.get("target-epsilon") is not None and "noise-multiplier" not in changes:
            changes["noise-multiplier"] = None
        if changes.get("noise-multiplier") is not None and "target-epsilon" not in changes:
            changes["target-epsilon"] = None
        return replace(self, **{name.replace("-", "_"): v for name, v in changes.items()})

    def restored(self, document: Mapping[str, Option]) -> Self:
        """Return the experiment with the options of a run folder or a row of results.

        Those written before options belonged to parts list all of them: what has no part there
        decided nothing and is passed over.

        Raises:
            ValueError: For an unknown option or an unfit value.
        """
        check_known((TAG_PREDICTION, *self._slots), document)
        values = {**self.values, **completed(self._slots, document)}
        return replace(self, values=values, automatic=())

    @property
    def _slots(self) -> tuple[Slot, ...]:
        return (*_task_slot(self.task, SLOTS[self.unit]), *SLOTS[self.unit])


def _check_task(task: Any, options: Mapping[str, Any]) -> None:
    """Refuse options of tag prediction where the task is another and has none of that name."""
    own = {name for slot in _task_slot(task, ()) for name, _ in slot.options("")}
    for name in all_names([TAG_PREDICTION]):
        if options.get(name) not in (None, "none") and name not in own:
            raise ValueError(
                f"{name} belongs to tag prediction; this experiment has a task of its own: leave "
                f"{name} out, or declare it in the task"
            )


def _task_slot(task: Any, others: Sequence[Slot]) -> tuple[Slot, ...]:
    """Return the slot of a task factory that declares options, as a frozen dataclass.

    Raises:
        ValueError: If one of its options has the name of another part's.
    """
    if not is_dataclass(task) or isinstance(task, type) or not declared(type(task)):
        return ()
    if type(task) is TagPredictionTask:
        slot = TAG_PREDICTION
    else:
        values = {item.field: getattr(task, item.field) for item in declared(type(task))}
        slot = Slot(
            name="task",
            help=(type(task).__doc__ or "").partition("\n")[0],
            choices={"": type(task)},
            defaults=values,
            make=partial(replace, task),
        )
    taken = set(all_names([slot])) & set(all_names(others))
    for name in sorted(taken):
        raise ValueError(f"task option {name} is an option of experiments already; rename it")
    return (slot,)


def existing_options(unit: str, options: Mapping[str, Option]) -> dict[str, Option]:
    """Return those of some options whose parts are chosen among them, and defaults of the rest.

    Raises:
        ValueError: For an unfit value.
    """
    slots = SLOTS["user" if unit == "user" else "example"]  # an owner is one of examples
    if any(name in options for name in all_names([TAG_PREDICTION])):
        options = completed([TAG_PREDICTION], options)
    options = completed(slots, options)
    parts = compose(slots, options)
    # What no part of ours declares is of a task of somebody's own.
    own = {name: options[name] for name in set(options) - set(all_names(slots))}
    return {**own, **option_values(parts)}
