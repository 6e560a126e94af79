"""Experiments by name: those of installed packages, of a checkout, and one's own."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.own_code import own_code

ENTRY_POINTS = "fedpriv.experiments"


def find_experiments() -> dict[str, Callable[[], Experiment]]:
    """Return every experiment that can be found, by name.

    Looks in the packages of the entry-point group `fedpriv.experiments`, which list their
    experiment functions in `EXPERIMENTS`. A checkout's own `simulations` package is found too.
    """
    found: dict[str, Callable[[], Experiment]] = {}
    for package in _packages():
        for make in getattr(package, "EXPERIMENTS", ()):
            found[make.__name__.replace("_", "-")] = make
    return found


def find_reproductions() -> dict[str, Any]:
    """Return every `Reproduction` of a paper's table that can be found, by name.

    Looks where experiments are looked for, in `REPRODUCTIONS`: names of modules with a tuple of
    that name, which are loaded here, because they take longer than a list of experiments may.
    """
    found: dict[str, Any] = {}
    for package in _packages():
        for module in getattr(package, "REPRODUCTIONS", ()):
            for item in importlib.import_module(module).REPRODUCTIONS:
                found[item.name] = item
    return found


def _packages() -> Iterator[ModuleType]:
    names = {entry.value for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    for name in sorted(names | {"simulations"}):
        try:
            yield importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise


def load_experiment(name: str) -> Experiment:
    """Return an experiment by name, or by `module:function` for one of your own.

    Raises:
        ValueError: If there is none, with the nearest known name.
    """
    if ":" in name:
        module_name, _, function = name.partition(":")
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # last, so that nothing there can stand in for a library
        with own_code(f"while experiment {name} was loaded"):
            experiment = _function(name, module_name, function)()
        if not isinstance(experiment, Experiment):
            raise ValueError(
                f"{name!r} returned a {type(experiment).__name__}; let it return an Experiment"
            )
        return experiment
    found = find_experiments()
    if name not in found:
        near = difflib.get_close_matches(name, found, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "see `fedpriv list`"
        raise ValueError(f"experiment {name!r} is not known; {hint}")
    return found[name]()


def _function(name: str, module_name: str, function: str) -> Callable[[], Any]:
    """Return a function of a module; an error within the module is the module's own."""
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):  # the module lacks another one
            raise
        raise ValueError(
            f"experiment {name!r}: there is no module {error.name!r}; give module:function of a "
            "module in this folder or on the Python path"
        ) from error
    if not hasattr(module, function):
        raise ValueError(
            f"experiment {name!r}: module {module_name!r} has no function {function!r}; give the "
            "name of one that returns an Experiment"
        )
    return getattr(module, function)
