"""A corpus reaches a task, or is refused where the task takes none."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest

from fedpriv.experiments.build import make_task, takes_corpus
from tests.harness.refusals import refuses


def with_corpus(experiment, corpus):
    return corpus


def alone(experiment):
    return experiment


def bound(rows, experiment, corpus):
    return rows, corpus


class WithCorpus:
    def __call__(self, experiment, corpus):
        return corpus


TAKING = {
    "function": with_corpus,
    "partial": functools.partial(bound, 3),
    "object": WithCorpus(),
    "any number": lambda *given: given[1],
}
TAKING_NONE = {
    "function": alone,
    "keyword only": lambda experiment, *, corpus=None: experiment,
    "partial that has one": functools.partial(with_corpus, corpus=None),
    "a class of C": object,
}


@pytest.mark.parametrize("factory", TAKING.values(), ids=TAKING)
def test_a_factory_with_a_second_parameter_gets_the_corpus(factory):
    assert takes_corpus(factory)
    make_task(SimpleNamespace(name="own", task=factory), SimpleNamespace(directory="/c"))


@pytest.mark.parametrize("factory", TAKING_NONE.values(), ids=TAKING_NONE)
def test_a_corpus_is_refused_by_a_factory_without_one(factory):
    assert not takes_corpus(factory)
    experiment = SimpleNamespace(name="own", task=factory)
    with refuses(ValueError, "/c"):
        make_task(experiment, SimpleNamespace(directory="/c"))
