"""Strings from elsewhere, made harmless: user ids, task names and messages may hold anything."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def safe(value: object) -> str:
    """Return any value as text for HTML: no markup, no control or direction-changing signs.

    >>> safe("<b>&")
    '&lt;b&gt;&amp;'
    """
    return html.escape(plain(value))


def escaped(document: str) -> str:
    r"""Return a JSON document in which such signs, which are in its strings only, are escaped.

    >>> print(escaped('{"name": "a\x9bb"}'))
    {"name": "a\u009bb"}
    """
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def plain(value: object) -> str:
    """Return any value as text without control and direction-changing signs."""
    return _CONTROL.sub("\ufffd", str(value))


class PlainConsole(Console):
    """A console on which no text moves the cursor, changes a colour or turns words around.

    Names, messages and figures come from run folders, corpora and users' own code, and a terminal
    obeys whatever it is sent. What rich itself controls stays.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield what is printed, each text without control signs."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(plain(segment.text), segment.style)


#: Characters of a user's id.
MOST_ID_CHARS = 256


def check_ids(ids: Iterable[Any], of: str) -> None:
    """Refuse ids that are no strings.

    Args:
        ids: Of users.
        of: Whose they are, as the beginning of the sentence.

    Raises:
        ValueError: If one is no string of 1 to 256 characters, or they are one text, not several.
    """
    if isinstance(ids, str):
        raise ValueError(f"{of} is one text; give a list of ids")
    for item in ids:
        if not isinstance(item, str) or not 0 < len(item) <= MOST_ID_CHARS:
            raise ValueError(
                f"{of} has an id of type {type(item).__name__}"
                f"{f' and {len(item)} characters' if isinstance(item, str) else ''}: ids are "
                f"strings of 1 to {MOST_ID_CHARS} characters, such as str(number)"
            )


_DEVICE = re.compile(r"cpu|cuda(:(0|[1-9][0-9]{0,3}))?")


def is_device_name(name: object) -> bool:
    """Return whether a name is "cpu", "cuda", or "cuda:" and a number, here or elsewhere.

    PyTorch's own reading is wider: it takes numbers modulo 256, so that "cuda:256" is the first
    GPU, and any number of "cpu".
    """
    return isinstance(name, str) and _DEVICE.fullmatch(name) is not None
