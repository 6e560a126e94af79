"""A corpus reaches a task or is refused, whatever kind of callable makes the task."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from fedpriv.experiments.task_factory import make_task, takes_corpus
from tests.repeats import every_case


def reads(experiment, corpus):
    return corpus.view()


def inside(experiment, corpus):
    return lambda: corpus.view()


def ignores(experiment, corpus):
    return experiment


def alone(experiment):
    return experiment


def with_rows(rows, experiment, corpus):
    return rows


def with_rows_reads(rows, experiment, corpus):
    return rows, corpus


def handed_on(*given):
    return reads(*given)


def handed_nowhere(*given):
    return 0


def rest_unread(experiment, *rest):
    return experiment


def noted(function):
    @functools.wraps(function)
    def called(*args, **options):
        return function(*args, **options)

    return called


class Reads:
    def make(self, experiment, corpus):
        return corpus

    __call__ = make
    made = classmethod(make)
    plain = staticmethod(reads)


class Ignores:
    def make(self, experiment, corpus):
        return self

    __call__ = make
    made = classmethod(make)
    plain = staticmethod(ignores)


@dataclass
class Kept:
    experiment: Any
    corpus: Any


class Forgotten:
    def __init__(self, experiment, corpus):
        self.experiment = experiment


class Compiled:
    __call__ = operator.attrgetter("name")


class Partial:
    __call__ = functools.partial(with_rows, 1)


READ = {
    "function": reads,
    "closure": inside,
    "partial": functools.partial(with_rows_reads, 3),
    "partial of a partial": functools.partial(functools.partial(with_rows_reads, 3)),
    "partial of an object": functools.partial(Reads()),
    "decorated": noted(reads),
    "cached": functools.cache(reads),
    "partial of a decorated": functools.partial(noted(with_rows_reads), 3),
    "object": Reads(),
    "method": Reads().make,
    "class method": Reads.made,
    "static method": Reads.plain,
    "class": Kept,
    "any number": handed_on,
}
UNREAD = {
    "function": ignores,
    "one argument": alone,
    "partial": functools.partial(with_rows, 3),
    "partial of a partial": functools.partial(functools.partial(with_rows, 3)),
    "partial that has one": functools.partial(reads, corpus=None),
    "partial of an object": functools.partial(Ignores()),
    "decorated": noted(ignores),
    "cached": functools.cache(ignores),
    "partial of a decorated": functools.partial(noted(with_rows), 3),
    "object": Ignores(),
    "method": Ignores().make,
    "class method": Ignores.made,
    "static method": Ignores.plain,
    "class": Forgotten,
    "any number": handed_nowhere,
    "one and the rest": rest_unread,
    "compiled": operator.attrgetter("name"),
    "a class of C": object,
    "object that calls compiled code": Compiled(),
    "object that calls a partial": Partial(),
}


@every_case("factory", READ.values(), ids=READ)
def test_a_corpus_that_is_read_is_taken(factory):
    assert takes_corpus(factory)


@every_case("factory", UNREAD.values(), ids=UNREAD)
def test_a_corpus_that_is_not_read_is_refused(factory):
    assert not takes_corpus(factory)
    experiment = SimpleNamespace(name="own", task=factory)
    with pytest.raises(ValueError, match=r"own brings its own users.*leave corpus '/c' out"):
        make_task(experiment, SimpleNamespace(directory="/c"))


def test_decorators_in_a_circle_end():
    def circular(experiment, corpus):
        return corpus

    circular.__wrapped__ = circular
    assert not takes_corpus(circular)
