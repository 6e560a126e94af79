"""Studies: methods × ε × data × seeds, written in Python or TOML, and the trials they come to."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any

from fedpriv import __version__
from fedpriv.datasets.digests import fingerprint
from fedpriv.datasets.importers.locate import resolve_corpus
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.experiments.build import make_task, takes_corpus
from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.load import find_experiments, from_anywhere, load_code, load_experiment
from fedpriv.experiments.options import Option, OptionIndex, flatten, kebab
from fedpriv.experiments.tasks import TagPredictionTask
from fedpriv.experiments.user_code import user_code
from fedpriv.hashes import document_sha256, file_sha256
from fedpriv.measures import Measure
from fedpriv.privacy.epsilon import target_label
from fedpriv.ranges import positive_float
from fedpriv.report.comparison.groups import unlike
from fedpriv.studies.search import Search
from fedpriv.tasks.checks import public_of_rostered
from fedpriv.tasks.module_task import ArrayUsers
from fedpriv.tasks.task import data_digests

MOST_TRIALS = 100_000
_KEY = 16  # hex digits
_NO_NOISE = ("none", "-", "inf")  # how a TOML file writes "without privacy", which has no null


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One method of a study.

    Attributes:
        experiment: A name of `fedpriv list`, "module:function" or "path/file.py:function", or an
            experiment.
        options: Options of the experiment to change.
        epsilons: Instead of the study's.
    """

    experiment: str | Experiment
    options: Mapping[str, Option] = field(default_factory=dict[str, Option])
    epsilons: tuple[float | None, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One trial: an experiment with all of its options, on one seed.

    Attributes:
        key: 16 hex digits of everything that decides it; the name of its run folder.
        method: Label of the method.
        epsilon: To which its noise is calibrated; None where it is trained without privacy.
        data: Label of the data.
        seed: Of the run.
        searched: Options that a search chose.
        experiment: What is run.
        reference: The name under which it is found again; None if it has none.
        corpus: The folder of its corpus; None for a task that brings its own data.
        task_key: Equal for trials whose tasks are equal; None where that is not known.
    """

    key: str
    method: str
    epsilon: float | None
    data: str
    seed: int
    searched: Mapping[str, Option] = field(default_factory=dict[str, Option])
    experiment: Experiment = field(repr=False)
    reference: str | None = None
    corpus: Path | None = None
    task_key: str | None = None

    @property
    def row(self) -> dict[str, Any]:
        """Its identity in the study's files, as JSON values."""
        return {
            "key": self.key,
            "method": self.method,
            "epsilon": self.epsilon,
            "data": self.data,
            "seed": self.seed,
        }

    def __str__(self) -> str:
        data = f", {self.data}" if self.data else ""
        chosen = "".join(f", {name} {_format(value)}" for name, value in self.searched.items())
        return f"{self.method}, {target_label(self.epsilon)}{data}, seed {self.seed}{chosen}"


def _format(value: Option) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Methods × ε × data × seeds: every combination is one trial.

    Attributes:
        name: What the page is called.
        methods: By label: the name of an experiment, an `Experiment`, a `Method`, or a mapping with
            "experiment" (by default the label), "epsilons" and options. A sequence of names labels
            each by its name.
        epsilons: Target ε, to each of which the noise of each method is calibrated; None is
            training without privacy. A method without noise is run once for each data and seed, and
            one that needs an ε is left out of None.
        seeds: Each a simulation of its own; a number n means 0 to n - 1.
        data: By label: options that choose data, such as `corpus` (a name or path), `roster`,
            `fold` or `users`; empty for what the experiments have.
        options: Options of every method. Those of a method go before them, and those of data
            before both.
        search: How further options are chosen; None where none are.

    Raises:
        ValueError: If something does not fit together.
    """

    name: str
    methods: Mapping[str, Any] | Sequence[str]
    epsilons: Sequence[float | str | None] = (8.0,)
    seeds: Sequence[int] | int = (0,)
    data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    options: Mapping[str, Option] = field(default_factory=dict[str, Option])
    search: Search | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Check every field and bring it to its one form."""

        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        given: Any = self.name
        if not isinstance(given, str) or not given.strip() or not given.isprintable():
            raise ValueError(f"name {given!r} of a study is no line of text; give it a short name")
        methods = self.methods
        if isinstance(methods, str) or not methods:
            raise ValueError(
                f"methods {methods!r}: give names of experiments, with labels or as a list"
            )
        if not isinstance(methods, Mapping):
            methods = {str(name): name for name in methods}
        put("methods", {_label(label): _method(str(label), one) for label, one in methods.items()})
        put("epsilons", _epsilons("epsilons", self.epsilons))
        seeds = range(self.seeds) if isinstance(self.seeds, int) else self.seeds
        put("seeds", tuple(seeds))
        if not seeds or any(type(seed) is not int or seed < 0 for seed in seeds):
            raise ValueError(f"seeds {self.seeds!r}: give whole numbers from 0 on, or how many")
        if len(set(seeds)) < len(seeds):
            raise ValueError(f"seeds {self.seeds!r}: one is there twice; give each once")
        data = {
            label and _label(label): _options(one, f"data {label!r}")
            for label, one in self.data.items()
        }
        put("data", data or {"": {}})
        put("options", _options(self.options, "options"))
        if isinstance(self.search, Mapping):
            put("search", Search.of(self.search))
        number = len(self.methods) * len(self.epsilons) * len(self.data) * len(seeds)
        if number > MOST_TRIALS:
            raise ValueError(f"{number:,} trials are more than {MOST_TRIALS:,}; give fewer of each")

    @property
    def labelled(self) -> Mapping[str, Method]:
        """The methods by label."""
        found: Any = self.methods
        return found

    @property
    def levels(self) -> tuple[float | None, ...]:
        """The target ε; None is without privacy."""
        found: Any = self.epsilons
        return found

    @property
    def each_seed(self) -> tuple[int, ...]:
        """The seeds."""
        found: Any = self.seeds
        return found

    @classmethod
    def of(cls, document: Mapping[str, Any], base: Path | None = None) -> Study:
        """Return the study of a document as a TOML file has it.

        Args:
            document: Keys as the fields; tables of options may be nested.
            base: The folder that paths of corpora and Python files in it are relative to, where
                they are found there.

        Raises:
            ValueError: If a key is unknown, or something does not fit.
        """
        known = ("name", "methods", "epsilons", "seeds", "data", "options", "search")
        odd = sorted(set(document) - set(known))
        if odd:
            raise ValueError(
                f"{odd[0]!r} is no key of a study; use {', '.join(known)}, and put options of "
                "experiments into [options]"
            )
        lacking = [name for name in ("name", "methods") if name not in document]
        if lacking:
            raise ValueError(f"the study has no {lacking[0]}; add {lacking[0]} = ...")
        found = dict(document)
        if base is not None:
            found["methods"] = _relative_methods(found["methods"], base)
            found["data"] = {
                label: {n: _relative(v, base) if n == "corpus" else v for n, v in one.items()}
                for label, one in found.get("data", {}).items()
            }
        return cls(**found)

    def document(self) -> dict[str, Any]:
        """Return the study as JSON values."""
        methods: dict[str, Any] = {}
        for label, one in self.labelled.items():
            given, named = one.experiment, reference_of(one.experiment)
            methods[label] = {
                "experiment": given.name if isinstance(given, Experiment) else given,
                "reference": named,
                "options": dict(one.options),
                "epsilons": None if one.epsilons is None else list(one.epsilons),
            }
        return {
            "name": self.name,
            "methods": methods,
            "epsilons": list(self.levels),
            "seeds": list(self.each_seed),
            "data": {label: dict(one) for label, one in self.data.items()},
            "options": dict(self.options),
            "search": self.search.to_json() if isinstance(self.search, Search) else None,
        }


def load_study(where: str | Path) -> Study:
    """Return the study of a TOML file, or of a Python file: `path.py:name`, a study or a function.

    A TOML file without a name has that of the file, without its suffix.

    Raises:
        ValueError: If there is no such file or name, or it holds no study.
    """
    name = str(where)
    if name.endswith(".toml"):
        path = Path(name).expanduser()
        try:
            document = tomllib.loads(path.read_text("utf-8"))
        except OSError as error:
            raise ValueError(f"study {name!r}: {error.strerror}; give a TOML file") from error
        except ValueError as error:
            raise ValueError(f"study {name!r} is not TOML: {error}") from error
        try:
            return Study.of({"name": path.stem, **document}, path.absolute().parent)
        except ValueError as error:
            raise ValueError(f"study {name!r}: {error}") from error
    module, separator, function = name.rpartition(":")
    if not separator:
        raise ValueError(
            f"study {name!r}: give a .toml file, or path.py:NAME of a Study in Python or of a "
            "function that returns one"
        )
    with user_code(f"while study {name} was loaded"):
        found = load_code(name, module, function)
        made = found if isinstance(found, Study) else found()
    if not isinstance(made, Study):
        raise ValueError(f"{name!r} returned a {type(made).__name__}; let it return a Study")
    return made


class Resolver:
    """Makes the trials of a study; remembers what it read of data.

    Args:
        study: The study.
    """

    def __init__(self, study: Study) -> None:
        self.study = study
        self._corpora: dict[str | None, Corpus] = {}
        self._facts: dict[str, DataFacts] = {}
        self._loaded: dict[str, Experiment] = {}

    def cells(self) -> Iterator[tuple[str, float | None, str]]:
        """Yield method, ε and data of every group of trials that differ in their seed alone."""
        study = self.study
        for data in study.data:
            for method, one in study.labelled.items():
                base = self._base(method, data)[0]
                wanted = study.levels if one.epsilons is None else one.epsilons
                levels: list[float | None] = [None]
                if has_noise(base):
                    levels = [level for level in wanted if _has_level(base, level)]
                with named_trial(method, data):
                    for level in levels:
                        at_level(base, level).check()
                for level in levels:
                    yield method, level, data

    def trials(self) -> list[Trial]:
        """Return every trial of a study that searches nothing: of the first seed first."""
        cells = list(self.cells())
        return [
            self.trial(method, level, data, seed)
            for seed in self.study.each_seed
            for method, level, data in cells
        ]

    def trial(
        self,
        method: str,
        epsilon: float | None,
        data: str,
        seed: int,
        searched: Mapping[str, Option] | None = None,
        key: str | None = None,
    ) -> Trial:
        """Return a trial.

        Args:
            method: Label.
            epsilon: Target; None for none.
            data: Label.
            seed: Of the run.
            searched: Options that a search chose.
            key: Its key where that is known, which spares reading the data.

        Raises:
            ValueError: If options do not fit the experiment.
        """
        base, reference, corpus = self._base(method, data)
        with named_trial(method, data):
            chosen = base.with_options(dict(searched or {}))
            _refuse_noise_level(chosen, searched or {})
            chosen = at_level(chosen, epsilon).with_options({"seed": seed})
        return Trial(
            key=key or self._key(method, chosen, corpus),
            method=method,
            epsilon=epsilon if has_noise(chosen) else None,
            data=data,
            seed=seed,
            searched=dict(searched or {}),
            experiment=chosen,
            reference=reference,
            corpus=None if corpus is None else corpus.directory.resolve(),
            task_key=self.task_key(chosen, corpus) if corpus is not None else None,
        )

    def unlike(
        self, described: Mapping[tuple[str, str], Mapping[str, Any]] | None = None
    ) -> list[str]:
        """Return how methods differ besides training on users, in a sentence for each data.

        Args:
            described: What else is known of their public data, by method and data.
        """
        found = []
        for data in self.study.data:
            methods: dict[str, dict[str, Any]] = {}
            for label in self.study.labelled:
                made = self._base(label, data)[0]
                given = {n: v for n, v in made.options().items() if n not in made.automatic}
                methods[label] = {**given, **(described or {}).get((label, data), {})}
            found.append(unlike(methods))
        return list(dict.fromkeys(filter(None, found)))

    def corpus_of(self, trial: Trial) -> Corpus | None:
        """Return the corpus of a trial."""
        return self._base(trial.method, trial.data)[2]

    def facts(self, experiment: Experiment, corpus: Corpus | None) -> DataFacts:
        """Return what is known of an experiment's data; read once for each choice of data."""
        known = self.task_key(experiment, corpus)
        if known not in self._facts:
            with user_code(f"while the task of {experiment.name} was made"):
                self._facts[known] = DataFacts.of(make_task(experiment, corpus))
        return self._facts[known]

    def _base(self, method: str, data: str) -> tuple[Experiment, str | None, Corpus | None]:
        study = self.study
        one = study.labelled[method]
        given = dict(study.data[data])
        asked = given.pop("corpus", None)
        with named_trial(method, data):
            if isinstance(one.experiment, str):
                if one.experiment not in self._loaded:
                    self._loaded[one.experiment] = load_experiment(one.experiment)
                experiment = self._loaded[one.experiment]
            else:
                experiment = one.experiment
            merged: dict[str, Option] = {}
            for options in (study.options, one.options, given):
                merged |= options
            experiment = experiment.with_options(merged)
            _refuse_noise_level(experiment, merged)
            corpus = self._corpus(experiment, asked)
        return experiment, reference_of(one.experiment), corpus

    def _corpus(self, experiment: Experiment, asked: str | None) -> Corpus | None:
        if asked is not None and not takes_corpus(experiment.task):
            raise ValueError(f"{experiment.name} brings its own data; leave corpus {asked} out")
        if asked is None and not isinstance(experiment.task, TagPredictionTask):
            return None
        if asked not in self._corpora:
            self._corpora[asked] = resolve_corpus(asked, allow_synthetic=True)
        return self._corpora[asked]

    def _key(self, method: str, experiment: Experiment, corpus: Corpus | None) -> str:
        start = experiment.options().get("start.file")
        custom = experiment.user_defined() or not _is_fedprivs(experiment.task)
        document = {
            "experiment": experiment.name,
            # Code is told by the name that the study gives it.
            "method": method if custom else None,
            "options": experiment.options(),
            "automatic": sorted(experiment.automatic),
            "start": None if start is None else file_sha256(Path(str(start))),
            "data": self.facts(experiment, corpus).digest,
            "fedpriv": __version__,
        }
        return document_sha256(document)[:_KEY]

    def task_key(self, experiment: Experiment, corpus: Corpus | None) -> str:
        """Return what is equal for experiments whose tasks are equal, in this process."""
        options, task = experiment.options(), experiment.task
        given = {n: v for n, v in options.items() if n.startswith("task.")}
        if not _is_fedprivs(type(task)):
            # A user-defined task may look at anything but what the trials differ in.
            left_out = ("seed", "noise", "output_noise", "target_epsilon")
            given = {n: v for n, v in options.items() if not n.startswith(left_out)}
        return document_sha256(
            {
                # What a function encloses, such as data, is not known.
                "task": id(type(task) if is_dataclass(task) else task),
                "options": given,
                "unit": experiment.unit,
                "examples": options.get("examples_per_user"),
                "corpus": None if corpus is None else str(corpus.directory.resolve()),
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFacts:
    """Facts about a task's data.

    Attributes:
        digest: Of its contents, JSON values.
        measures: Of the task, the headline first.
        equal: How many of its public examples equal rostered users', so that a choice by them
            would be a choice by these.
    """

    digest: Any
    measures: tuple[Measure, ...]
    equal: int

    @classmethod
    def of(cls, task: Any) -> DataFacts:
        """Return the facts of a task."""
        digest: Any = data_digests(task)
        described = task.describe().to_json()
        if digest is None:
            digest = {"described": described, "roster": task.roster_sha256}
            data = getattr(task, "data", None)
            if isinstance(data, ArrayUsers):
                found = [own for user in task.roster if (own := data.readable(user)) is not None]
                digest["users"] = fingerprint(*(part for own in found for part in (own.x, own.y)))
        else:
            named = ("name", "roster", "roster_sha256", "num_users", "num_public_users")
            digest = {"digests": digest, **{name: described.get(name) for name in named}}
        equal = public_of_rostered(task, learnt_from=False)
        return cls(
            digest=digest,
            measures=tuple(task.measures),
            equal=equal.get("public_of_rostered", 0),
        )


def has_noise(experiment: Experiment) -> bool:
    """Return whether an experiment adds noise."""
    options = experiment.options()
    return options.get("noise", options.get("output_noise")) != "none"


def _has_level(experiment: Experiment, level: Any) -> bool:
    """Return whether an experiment can be trained at an ε; None is without privacy."""
    options = experiment.options()
    return level is not None or "noise" in options or "output_noise" in options


_NOISE_LEVELS = frozenset({"target_epsilon", "noise.multiplier", "output_noise.noise_multiplier"})
"""Options that `at_level` sets."""


def _is_fedprivs(code: Any) -> bool:
    """Return whether a function, a class or an object of one is fedpriv's own."""
    return (code.__module__ or "").partition(".")[0] == "fedpriv"  # None of executed text


def _refuse_noise_level(experiment: Experiment, given: Mapping[str, Option]) -> None:
    """Refuse an option that says how much noise, where the study's ε decide that.

    Args:
        experiment: With the options.
        given: Options by name as they were written.

    Raises:
        ValueError: If there is one.
    """
    index = OptionIndex(experiment.entries())
    for name, value in given.items():
        levels = _NOISE_LEVELS & {entry.path for entry in index.find(name)}
        if levels and value not in (None, "none"):
            raise ValueError(
                f"{name} {value}: a study calibrates each method's noise to its epsilons; leave it "
                "out, and give the ε that this noise comes to (fedpriv plan) as epsilons"
            )


def at_level(experiment: Experiment, epsilon: float | None) -> Experiment:
    """Return an experiment with its noise calibrated to an ε, or without noise for None.

    One that adds no noise stays as it is.
    """
    if not has_noise(experiment):
        return experiment
    if epsilon is not None:
        return experiment.with_options({"target_epsilon": epsilon})
    options = experiment.options()
    place = next((name for name in ("noise", "output_noise") if name in options), None)
    if place is None:
        raise ValueError(f"{experiment.name} has no form without privacy; give an ε")
    return experiment.with_options({place: "none"})


def reference_of(experiment: str | Experiment) -> str | None:
    """Return the name under which an experiment is found from every folder; None without one."""
    if isinstance(experiment, str):
        return from_anywhere(experiment)
    make = find_experiments().get(experiment.name)
    known = make is not None and make().with_options(experiment.options()) == experiment
    return experiment.name if known else None


class named_trial:
    """Names the method and the data in a `ValueError` from within."""

    def __init__(self, method: str, data: str) -> None:
        self._text = f"method {method!r}" + (f" on data {data!r}" if data else "")

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, ValueError):
            raise ValueError(f"{self._text}: {error}") from error


def _label(given: Any) -> str:
    if not isinstance(given, str) or not given.strip() or not given.isprintable():
        raise ValueError(f"label {given!r} is no line of text; give a short name")
    return given


def _method(label: str, given: Any) -> Method:
    """Return a method in its one form.

    Raises:
        ValueError: If it is none.
    """
    if isinstance(given, str | Experiment):
        return Method(experiment=given)
    if isinstance(given, Method):
        levels = None if given.epsilons is None else _epsilons(f"{label}: epsilons", given.epsilons)
        return replace(given, options=_options(given.options, label), epsilons=levels)
    if not isinstance(given, Mapping):
        raise ValueError(
            f"method {label!r} is {given!r}; give the name of an experiment, an Experiment, or a "
            "table with `experiment` and options"
        )
    rest = dict(given)
    experiment, levels = rest.pop("experiment", label), rest.pop("epsilons", None)
    options = rest.pop("options", {})
    return Method(
        experiment=experiment,
        options=_options({**rest, **options}, f"method {label!r}"),
        epsilons=None if levels is None else _epsilons(f"method {label!r}: epsilons", levels),
    )


def _options(given: Any, what: str) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise ValueError(f"{what} is {given!r}; give a table of options")
    found = {kebab(str(name)): value for name, value in flatten(given).items()}
    if "seed" in found:
        raise ValueError(f"{what}: seed is not for options; give the study's seeds")
    return {name: str(v) if isinstance(v, Path) else v for name, v in found.items()}


def _epsilons(what: str, given: Any) -> tuple[float | None, ...]:
    values = [given] if isinstance(given, int | float | str) or given is None else list(given)
    found: list[float | None] = []
    for value in values:
        level = None if value is None or value in _NO_NOISE else value
        if level == float("inf"):
            level = None
        found.append(None if level is None else positive_float(what, level))
    if not found or len(set(found)) < len(found):
        raise ValueError(f"{what} {given!r}: give each once, and at least one; none is no privacy")
    return tuple(found)


def _relative_methods(given: Any, base: Path) -> Any:
    if isinstance(given, Mapping):
        return {
            label: {**one, "experiment": _relative(one.get("experiment", label), base)}
            if isinstance(one, Mapping)
            else _relative(one, base)
            for label, one in given.items()
        }
    return [_relative(one, base) for one in given] if isinstance(given, list) else given


def _relative(name: Any, base: Path) -> Any:
    """Return a path as one from everywhere, where there is such a file in a study's folder."""
    if not isinstance(name, str):
        return name
    where, separator, function = name.rpartition(":")
    path = base / (where if separator else name)
    if not Path(where if separator else name).is_absolute() and path.exists():
        return f"{path}{separator}{function}" if separator else str(path)
    return name
