"""What is said of a user that fails: its kind, never its text."""

from __future__ import annotations

import logging

_LOG = logging.getLogger(__name__)


def contributes_zero(error: BaseException) -> None:
    """Log that a user contributes zero; the text of an error may hold the user's data."""
    _LOG.warning("a user contributes zero: %s", type(error).__name__)
    _LOG.debug("why it does", exc_info=error)
