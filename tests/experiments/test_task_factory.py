"""A corpus reaches a task, or is refused where the task takes none."""

import functools
from contextlib import nullcontext
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


#: Factories of a task, and whether they take a corpus.
FACTORIES = {
    "function": (with_corpus, True),
    "partial": (functools.partial(bound, 3), True),
    "object": (WithCorpus(), True),
    "any number": (lambda *given: given[1], True),
    "function of one": (alone, False),
    "keyword only": (lambda experiment, *, corpus=None: experiment, False),
    "partial that has one": (functools.partial(with_corpus, corpus=None), False),
    "a class of C": (object, False),
}


@pytest.mark.parametrize(("factory", "takes"), FACTORIES.values(), ids=FACTORIES)
def test_a_factory_with_a_second_parameter_gets_the_corpus_and_others_refuse_it(factory, takes):
    experiment = SimpleNamespace(name="own", task=factory)
    assert takes_corpus(factory) == takes
    with nullcontext() if takes else refuses(ValueError, "/c"):
        make_task(experiment, SimpleNamespace(directory="/c"))
