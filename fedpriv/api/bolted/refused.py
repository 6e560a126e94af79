"""What cannot be wrapped, by name: models whose loss nothing shows to be convex."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Any


def check_train(train: Any) -> None:
    """Refuse what is no training that a proof speaks of.

    It is looked for among the training itself, what it is bound to or was partly applied to, and
    what it closes over or names: a module that is reached some other way is not seen.

    Raises:
        ValueError: If it cannot be called, is an estimator's, or is, or is made of, a torch module.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        for held in _held(train):
            if isinstance(held, torch.nn.Module):
                raise ValueError(
                    f"train works on a torch module ({type(held).__name__}): nothing shows that "
                    "its loss is convex, and two runs of one that is not may drift apart without "
                    "limit; use noise in every step (method averaging), or a linear model in NumPy"
                )
    if hasattr(train, "partial_fit") or hasattr(getattr(train, "__self__", None), "partial_fit"):
        raise ValueError(
            "train is an estimator's, whose parameters say how it trains: give an SGDClassifier to "
            "fedpriv.bolt_on_classifier; of another kind nothing is known"
        )
    if not callable(train):
        raise ValueError(
            f"train {type(train).__name__} cannot be called; give a function of a walk that "
            "returns params"
        )


def _held(train: Any) -> Iterator[Any]:
    yield train
    if isinstance(train, functools.partial):
        yield from (*train.args, *train.keywords.values())
        yield from _held(train.func)
        return
    if hasattr(train, "__self__"):
        yield train.__self__
        yield from _values(train.__self__)
    elif not hasattr(train, "__code__"):
        yield from _values(train)
    function = getattr(train, "__func__", train)
    for cell in getattr(function, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue
    code = getattr(function, "__code__", None)
    if code is not None:
        known = function.__globals__
        yield from (known[name] for name in code.co_names if name in known)
        yield from function.__defaults__ or ()
        yield from (function.__kwdefaults__ or {}).values()


def _values(holder: Any) -> Iterator[Any]:
    yield from getattr(holder, "__dict__", {}).values()
