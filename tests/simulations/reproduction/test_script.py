"""Figures that a program of their own makes are listed and run by name."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest

import simulations
from simulations.reproduction.items import Script


@pytest.fixture
def program(monkeypatch):
    calls = []
    module = ModuleType("a_program")
    module.main = calls.append
    monkeypatch.setitem(sys.modules, "a_program", module)
    return calls


def script(**changes):
    given = {
        "name": "paper-figure9",
        "title": "Figure 9",
        "module": "a_program",
        "calls": (("run", "--all"), ("page",)),
        "reduced": (("run",),),
        "minutes": (10, 1),
    }
    return Script(**{**given, **changes})


def test_its_calls_come_one_after_the_other(program):
    script().run()
    script().run(reduced=True)
    assert program == [["run", "--all"], ["page"], ["run"]]


def test_what_it_cannot_do_is_said(program):
    with pytest.raises(ValueError, match="no reduced size; see `python -m a_program --help`"):
        script(reduced=()).run(reduced=True)
    with pytest.raises(ValueError, match="needs options of its own"):
        script(calls=()).run()
    assert program == []


def test_all_of_the_papers_have_a_program():
    found = [
        item
        for module in simulations.REPRODUCTIONS
        for item in importlib.import_module(module).REPRODUCTIONS
        if isinstance(item, Script)
    ]
    names = [item.name for item in found]
    assert len(set(names)) == len(names)
    assert set(names) == {
        "agd-mnist-3-8",
        "agd-covertype",
        "agd-imdb",
        "bolt-on-mnist",
        "bolt-on-mnist-ova",
        "bolt-on-pair-logistic",
        "bolt-on-pair-svm",
        "bolt-on-covertype",
        "bolt-on-imdb",
        "bolt-on-batches",
        "bolt-on-time",
        "bolt-on-excess",
        "scraps-convex",
        "scraps-stackoverflow",
        "scraps-pds",
        "scraps-cifar10",
        "scraps-cifar100",
        "scraps-pcvr",
        "adadps-figure2",
        "adadps-figure3",
        "dpnsgd-figure3-mnist",
        "dpnsgd-figure3-cifar10",
        "dpnsgd-figure4-sst2",
        "tags",
        "ablation-tags",
    }
    for item in found:
        assert callable(importlib.import_module(item.module).main)
        assert item.minutes[1] <= 10 or not item.reduced
