"""The privacy statement as HTML and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv.privacy.statement.statement import Section
from fedpriv.untrusted_text import plain, safe


def as_html(sections: Sequence[Section]) -> str:
    """Return sections as a two-column list of titles and paragraphs."""
    parts = (
        f"<h3>{safe(section.title)}</h3><div>"
        + "".join(f"<p>{safe(paragraph)}</p>" for paragraph in section.paragraphs)
        + "</div>"
        for section in sections
    )
    return f'<div class="statement">{"".join(parts)}</div>'


def as_markdown(sections: Sequence[Section], level: int = 3) -> str:
    """Return sections as Markdown with headings of a level."""
    parts = (
        f"{'#' * level} {markdown_safe(section.title)}\n\n"
        + "\n\n".join(markdown_safe(paragraph) for paragraph in section.paragraphs)
        for section in sections
    )
    return "\n\n".join(parts)


def markdown_safe(value: object) -> str:
    r"""Return any value as one line of Markdown text that means only itself.

    >>> print(markdown_safe("<b> [x](y) 5*3"))
    &lt;b> \[x\](y) 5\*3
    """
    text = " ".join(plain(value).split()).replace("&", "&amp;").replace("<", "&lt;")
    for sign in "\\`*_[]#|":
        text = text.replace(sign, "\\" + sign)
    return text
