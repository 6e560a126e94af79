"""What a page shows: its words, without markup."""

import html
import re


def words(page: str) -> str:
    """Return a page's words with single spaces, without its styles and scripts."""
    page = re.sub(r"<(style|script).*?</\1>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def head(page: str) -> str:
    """Return the words of a page's header."""
    return words(page[page.index("<header>") : page.index("</header>")])
