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
        try:
            make = getattr(importlib.import_module(module_name), function)
        except (ImportError, AttributeError) as error:
            raise ValueError(
                f"experiment {name!r} cannot be imported ({error}); give module:function of a "
                "module on the Python path"
            ) from error
        experiment = make()
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
