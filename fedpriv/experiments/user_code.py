"""Errors of a user's own code: what is shown of them is that code's traceback and not ours."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType

from fedpriv.output_paths import why_unwritten
from fedpriv.training.failures import LIBRARIES, OURS, OURS_AND_LIBRARIES, label_hint, raised_at
from fedpriv.untrusted_text import plain

_PLACES = 3  # innermost


class UserCodeNote(str):
    """A note on an error that a user's own code raised: says when, and who had called it."""

    caller: tuple[str, str] | None = None


@contextmanager
def user_code(said: str, *, refusals: bool = True) -> Iterator[None]:
    """Add a note to what the code inside raises, unless it is a refusal of ours.

    Args:
        said: When it was raised, for the note; of a label that is no class the note says that.
        refusals: Whether a `ValueError` or `OSError` that fedpriv itself raised, because of what it
            was given, is left as it is: its text says what to do.
    """
    try:
        yield
    except Exception as error:
        if not (refusals and _is_refusal(error)) and not _notes(error):
            hint = label_hint(error)
            note = UserCodeNote(f"{said.partition(';')[0]}.{hint}" if hint else said)
            callers = [f for f in _codes(error) if f.co_filename != __file__]
            note.caller = (callers[0].co_filename, callers[0].co_name)
            error.add_note(note)
        raise


def user_traceback(error: BaseException) -> str | None:
    """Return the traceback of an error from where the user's own code begins, notes included.

    None for an error that no `user_code` has noted.
    """
    notes = _notes(error)
    if not notes:
        return None
    shown = traceback.TracebackException.from_exception(error)
    frames = list(shown.stack)
    # First come the frames of the command, then some of ours, then the user's code.
    callers = [i for i, f in enumerate(frames) if (f.filename, f.name) == notes[0].caller]
    del frames[: max(callers, default=-1) + 1]
    while frames and (_is_ours(frames[0].filename) or "importlib" in frames[0].filename):
        del frames[0]
    shown.stack = traceback.StackSummary.from_list(frames)
    return "".join(shown.format())


def one_line(error: BaseException) -> str | None:
    """Return what was asked wrongly, or is wrong with the user's own code, in one line.

    None for an error that is neither: its traceback is needed.
    """
    if _notes(error):
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if not f.filename.startswith(OURS_AND_LIBRARIES)]
        where = f" (your own code, {own[-1].filename}, line {own[-1].lineno})" if own else ""
        text = f"{type(error).__name__}: {error}{where}"
    elif isinstance(error, (ValueError, OSError)):
        text = why_unwritten(error) or str(error) or type(error).__name__
    elif isinstance(error, ImportError):
        text = f"{error}; install it here, or put it into the bundle"
    else:
        return None
    return plain(" ".join(text.split()))


def line_without_values(error: BaseException) -> str:
    """Return what went wrong on a machine that holds users' data, in a line that may leave it.

    Of a refusal of ours and of code that is not there the text, which says what to do; of all else,
    the user's own code among it, the kind and the places: its text may be a value of somebody's.
    """
    if isinstance(error, ImportError) or (not _notes(error) and _is_refusal(error)):
        said = one_line(error)
        if said is not None:
            return said
    places = raised_at(error).split(", ")[:_PLACES]
    return f"{type(error).__name__} at {', '.join(places)}"


def _notes(error: BaseException) -> list[UserCodeNote]:
    notes = getattr(error, "__notes__", ())
    return [note for note in notes if isinstance(note, UserCodeNote)]


def _is_refusal(error: BaseException) -> bool:
    """Return whether fedpriv raised an error, itself or in a library that it called."""
    if not isinstance(error, (ValueError, OSError)):
        return False
    for code in reversed(_codes(error)):
        if _is_ours(code.co_filename):
            return True
        if not code.co_filename.startswith((*LIBRARIES, "<frozen")):
            return False
    return False


def _codes(error: BaseException) -> list[CodeType]:
    """Return the code of every frame that an error has come through, innermost last."""
    return [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]


def _is_ours(file: str) -> bool:
    return file.startswith(OURS)
