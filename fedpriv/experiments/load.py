"""Experiments by name: ready-made ones, those of installed packages, and one's own."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.options import flatten
from fedpriv.experiments.user_code import user_code

ENTRY_POINTS = "fedpriv.experiments"
#: Modules of ready-made experiments, in the order in which they are listed.
READY_MADE = tuple(
    f"fedpriv.experiments.ready_made.{task}"
    for task in ("tags", "words", "images", "image_users", "natural_users", "conversions")
)


def find_experiments() -> dict[str, Callable[[], Experiment]]:
    """Return every experiment that can be found, by name.

    They are those of `READY_MADE`, and of the packages of the entry-point group
    `fedpriv.experiments`; each lists its experiment functions in `EXPERIMENTS`. A Flower bundle has
    no experiments of examples.
    """
    found: dict[str, Callable[[], Experiment]] = {}
    for package in _packages():
        for make in getattr(package, "EXPERIMENTS", ()):
            found[make.__name__.replace("_", "-")] = make
    return found


def _packages() -> Iterator[ModuleType]:
    installed = {entry.value for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    for name in (*READY_MADE, *sorted(installed)):
        try:
            yield importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise


class ExperimentNotFoundError(ValueError):
    """There is no such module or file on this machine."""


def load_experiment(name: str) -> Experiment:
    """Return an experiment by name, or one of your own: `module:function`, `path/file.py:function`.

    Raises:
        ExperimentNotFoundError: If there is no such module or file.
        ValueError: If there is no such name, with the nearest known one, or the function is
            missing or returns something else.
    """
    if name.endswith(".toml"):
        return _of_file(Path(name).expanduser())
    if ":" in name:
        where, _, function = name.rpartition(":")
        with user_code(f"while experiment {name} was loaded"):
            found = load_code(name, where, function)
            experiment = found if isinstance(found, Experiment) else found()
        if not isinstance(experiment, Experiment):
            raise ValueError(
                f"{name!r} returned a {type(experiment).__name__}; let it return an Experiment"
            )
        return experiment
    if name.endswith(".py"):
        raise ValueError(
            f"experiment {name!r}: name what is in the file too, as {name}:FUNCTION, a function "
            "that returns an Experiment"
        )
    found = find_experiments()
    if name not in found and Path(f"{name}.py").is_file():
        raise ValueError(
            f"experiment {name!r}: there is a file {name}.py here; name what is in it too, as "
            f"{name}:FUNCTION, a function that returns an Experiment"
        )
    if name not in found:
        near = difflib.get_close_matches(name, found, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "see `fedpriv list`"
        raise ValueError(f"experiment {name!r} is not known; {hint}")
    return found[name]()


def experiment_or_name(given: Any) -> Experiment | str:
    """Return an experiment, or the name of one; of a function what it returns.

    Raises:
        ValueError: If it is neither.
    """
    made = given() if callable(given) and not isinstance(given, Experiment) else given
    if not isinstance(made, Experiment | str):
        raise ValueError(
            f"{made!r} is no experiment; give a name of `fedpriv list` or an Experiment"
        )
    return made


def _of_file(path: Path) -> Experiment:
    """Return the experiment of a TOML file: that of its key `experiment`, with its other options.

    Raises:
        ValueError: If there is no such file, it is not TOML, or names no experiment.
    """
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ValueError(f"experiment {str(path)!r}: {error.strerror}; give a TOML file") from error
    except ValueError as error:
        raise ValueError(f"experiment {str(path)!r} is not TOML: {error}") from error
    base = document.pop("experiment", None)
    if not isinstance(base, str) or base.endswith(".toml"):
        raise ValueError(
            f"experiment {str(path)!r} names no experiment to begin with; add a line such as "
            'experiment = "adadps-tags"'
        )
    made = load_experiment(base)
    said = {key: str(document.pop(key)) for key in ("name", "description") if key in document}
    return replace(made.with_options(flatten(document)), **said)


def from_anywhere(name: str) -> str:
    """Return a name under which an experiment is found from every folder: a file's whole path."""
    where, _, function = name.rpartition(":")
    if name.endswith(".toml"):
        return str(Path(name).expanduser().absolute())
    if not where.endswith(".py"):
        return name
    return f"{Path(where).expanduser().absolute()}:{function}"


def load_code(name: str, where: str, function: str) -> Any:
    """Return what a module or file calls so; an error within it is its own.

    Args:
        name: "where:function", as it was given.
        where: A module's dotted name, or the path of a Python file.
        function: The name in it.

    Raises:
        ExperimentNotFoundError: If there is no such module or file.
        ValueError: If it has no such name.
    """
    module = load_file(Path(where), name) if where.endswith(".py") else _module(name, where)
    if not hasattr(module, function):
        raise ValueError(
            f"experiment {name!r}: module {where!r} has no function {function!r}; give the name of "
            "one that is there"
        )
    return getattr(module, function)


def _module(name: str, module_name: str) -> ModuleType:
    _find_in(os.getcwd())
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):  # the module lacks another one
            raise
        raise ExperimentNotFoundError(
            f"experiment {name!r}: there is no module {error.name!r}; give module:function of a "
            "module in this folder or on the Python path"
        ) from error


def load_file(path: Path, name: str | None = None) -> ModuleType:
    """Run a Python file, which may import what lies next to it, and return its module.

    Args:
        path: The file; of one that was run already the same module is returned.
        name: What messages call it; None for its path.

    Raises:
        ExperimentNotFoundError: If there is no such file.
    """
    name, path = name or str(path), path.expanduser().absolute()
    # A name of its own: two files called own.py are two modules.
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    module_name = f"{path.stem}_{digest}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ExperimentNotFoundError(
            f"experiment {name!r}: there is no file {str(path)!r}; put it there, or go on with its "
            "run from Python: fedpriv.resume(folder, experiment=...)"
        )
    _find_in(str(path.parent))
    module = sys.modules[module_name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


def _find_in(folder: str) -> None:
    """Let modules be imported from a folder: last, so that none shadows a library."""
    if folder not in sys.path:
        sys.path.append(folder)
