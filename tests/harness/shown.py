"""What a page shows: its words, without markup."""

from __future__ import annotations

import html
import re


def words(page: str) -> str:
    """Return a page's words with single spaces, without its styles."""
    page = re.sub(r"<style.*?</style>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())
