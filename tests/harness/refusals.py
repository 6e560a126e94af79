"""What a refusal is tested by: its type, and the values and options that it names."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import pytest


@contextlib.contextmanager
def refuses(error: type[BaseException], *names: Any) -> Iterator[pytest.ExceptionInfo[Any]]:
    """Assert that a block raises an error whose message has each name as a whole word.

    `-` and `_` are alike, as in options' names.

    Args:
        error: Its type.
        names: Values, options or files that whoever reads it needs to know, and no sentence.
    """
    with pytest.raises(error) as caught:
        yield caught
    said = str(caught.value).replace("_", "-")
    for name in (str(one).replace("_", "-") for one in names):
        assert re.search(rf"(?<!\w){re.escape(name)}(?!\w)", said), f"{name!r} is not in {said!r}"
