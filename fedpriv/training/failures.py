"""Logging of users that fail: the kind of an error and where it was raised, never its text.

The text of an error may hold the user's data. It is kept for those who run a simulation in the
process that has the users, and nowhere else: what a node of Flower's sends names the places in the
code, and of a secure run nothing is kept.
"""

from __future__ import annotations

import logging
import re
import sysconfig
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from fedpriv.rng import Key
from fedpriv.training.stopping import end_if_interrupted

_LOG = logging.getLogger(__name__)


class KeepsStateError(ValueError):
    """Training leaves something behind that the next user, or the next example, may read."""


class OwnTextError(ValueError):
    """An error with a text of fedpriv's own, in which is no value of a user's: it may be sent."""


@dataclass(slots=True)
class Failures:
    """Number of contributions that are zero because they failed, and the first error.

    Attributes:
        count: How many.
        first: The kind of the first error.
        cause: That with the places in the code where it was raised; no value is in it.
        text: What it says, as `fedpriv.sums.PartialSum.first_error`; None in a secure run.
    """

    count: int = 0
    first: str | None = None
    cause: str | None = None
    text: str | None = None


OURS = str(Path(__file__).parents[1])
LIBRARIES = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")})
OURS_AND_LIBRARIES = (OURS, *LIBRARIES, "<frozen")
_PLACES_LOGGED = 3  # innermost
_COUNTED: ContextVar[Failures | None] = ContextVar("failures counted", default=None)
_PLACES: ContextVar[bool] = ContextVar("places of errors alone", default=False)
_RAISED: ContextVar[bool] = ContextVar("failures raised", default=False)
_UNSAID: ContextVar[bool] = ContextVar("users unsaid", default=False)

_Value = TypeVar("_Value")


class _Quiet:
    """Ignoring of Python's warnings by this process, for as long as any thread asks for it.

    Their filters are one set for all threads, so that a thread must not restore them alone.
    """

    def __init__(self) -> None:
        self._lock, self._entered = threading.Lock(), 0
        self._caught = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            if self._entered == 0:
                self._caught = warnings.catch_warnings()
                self._caught.__enter__()
                warnings.simplefilter("ignore")
            self._entered += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._entered -= 1
            if self._entered == 0:
                self._caught.__exit__(None, None, None)


_QUIET = _Quiet()


@contextmanager
def _within(variable: ContextVar[_Value], value: _Value) -> Iterator[None]:
    """Give a variable a value within the `with`, in this thread and no other."""
    before = variable.set(value)
    try:
        yield
    finally:
        variable.reset(before)


@contextmanager
def counted_failures() -> Iterator[Failures]:
    """Count what contributes zero within the `with`, in this thread and no other.

    For sums that look at many examples at once and have nowhere to return a number. One inside
    another counts for itself, and reports the kind of its first error to the other.
    """
    failures, outer = Failures(), _COUNTED.get()
    try:
        with _within(_COUNTED, failures):
            yield failures
    finally:
        if outer is not None and outer.first is None:
            outer.first, outer.cause, outer.text = failures.first, failures.cause, failures.text


def only_places_of_errors() -> AbstractContextManager[None]:
    """Reduce errors within the `with` to kind and place in the code, which may leave a node."""
    return _within(_PLACES, True)


def raised_failures() -> AbstractContextManager[None]:
    """Raise within the `with` what would else contribute zero, in this thread and no other.

    For synthetic users: no private data is in the text, and it says what is wrong.
    """
    return _within(_RAISED, True)


def failures_are_raised() -> bool:
    """Return whether failures are raised here: users are synthetic."""
    return _RAISED.get()


@contextmanager
def users_not_logged(key: Key) -> Iterator[None]:
    """Suppress logging of drawn users and their answers within the `with` under a secure key.

    How many failed, or answered, bounds the size of the cohort, which an ε takes to be secret; a
    log is read by more people than the raw sum. In a simulation everything is said. Warnings of
    libraries are not shown either, of this process: PyTorch's and NumPy's tell what is in an array.

    Args:
        key: Of the round.
    """
    unsaid = _UNSAID.get() or key.mode == "secure"
    if not unsaid:
        yield
        return
    # NumPy warns of what is in an array, such as a number that float32 cannot hold: a user's.
    with _within(_UNSAID, unsaid), np.errstate(all="ignore"), _QUIET:
        yield


def log_of_users(log: logging.Logger, level: int, text: str, *values: object) -> None:
    """Log something that depends on who was drawn; see `users_not_logged`."""
    if not _UNSAID.get():
        log.log(level, text, *values)


def contributes_zero(error: BaseException) -> None:
    """Count a user who contributes zero, and log it in a simulation, without the error's text.

    Raises:
        KeyboardInterrupt: If it was no failure of the user's but an interrupt of the run.
        BaseException: The error itself within `raised_failures`.
    """
    end_if_interrupted(error)
    if _RAISED.get():
        raise error
    failures, kind = _COUNTED.get() or Failures(), type(error).__name__
    again = failures.first == kind
    failures.count += 1
    if again and not _LOG.isEnabledFor(logging.DEBUG):
        return
    again = again or isinstance(error, OwnTextError)  # its raiser has logged it
    places = raised_at(error)
    cause = f"{kind} at {', '.join(places.split(', ')[:_PLACES_LOGGED])}" if places else kind
    if failures.first is None:
        failures.first, failures.cause = kind, cause
        failures.text = None if _UNSAID.get() else _as_text(error)
    # Of one sum the first of a kind: hundreds of equal lines would bury everything else.
    level = logging.DEBUG if again else logging.WARNING
    log_of_users(_LOG, level, "a user contributes zero: %s%s", cause, label_hint(error))
    log_of_users(_LOG, logging.DEBUG, "it was raised at %s", places)


@contextmanager
def contributing_zero_on_failure() -> Iterator[None]:
    """Catch and count errors within the `with`: the contribution is zero.

    Raises:
        KeyboardInterrupt: As of `contributes_zero`.
        BaseException: The error within `raised_failures`.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a user raises, a panic in Rust too
        contributes_zero(error)


def label_hint(error: BaseException) -> str:
    """Return what to do about labels that are no classes, or of another type than a model takes.

    Or about an update that is not finite.
    """
    text = _text_of(error)
    if isinstance(error, ValueError) and text.startswith("the update's norm is "):
        return ": its update is not finite (NaN in its examples, or the rate is too high)"
    if isinstance(error, IndexError) and "Target" in text and "out of bounds" in text:
        return (
            " Labels are numbered from 0 up to the number of the model's outputs less one: number "
            "them so, or give the model more outputs."
        )
    words = set(re.findall("[a-z]+", text.lower()))
    if isinstance(error, RuntimeError) and {"long", "float", "target"} <= words:
        return ' Labels of classes are whole numbers: give them as such, y.astype("int64").'
    if isinstance(error, RuntimeError) and {"long", "float"} <= words:
        return (
            " Integer inputs are given to the model as int64, as word ids are: make pixels and "
            'other quantities float, such as x.astype("float32") / 255.'
        )
    return ""


def _text_of(error: BaseException) -> str:
    """Return an error's text; "" where that raises, which must not end a round in its place."""
    try:
        return str(error)
    except Exception:
        return ""


def _as_text(error: BaseException) -> str:
    """Return an error in a line, and its traceback where both are this process's to show."""
    kind = type(error).__name__
    if isinstance(error, OwnTextError):
        return f"{kind}: {error}"
    if _PLACES.get():
        return f"{kind} at {raised_at(error) or 'no known place'}"
    line = " ".join(f"{kind}: {_text_of(error)}{label_hint(error)}".split())
    return f"{line}\n\n{''.join(traceback.format_exception(error)).rstrip()}"


def raised_at(error: BaseException) -> str:
    """Return the lines of code on an error's way, the innermost first: no value is among them.

    The user's own come first, where there are any.
    """
    frames = traceback.extract_tb(error.__traceback__)[::-1]
    frames.sort(key=lambda at: at.filename.startswith(OURS_AND_LIBRARIES))  # keeps their order
    return ", ".join(f"{Path(at.filename).name}:{at.lineno} in {at.name}" for at in frames)


def mostly_failed(num_failed: int, cohort_size: int) -> bool:
    """Return whether more than half of a cohort contributed zero."""
    return 2 * num_failed > cohort_size
