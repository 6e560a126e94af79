"""Tokeniser of posts' HTML into sentences, by TensorFlow Federated's StackOverflow rule.

The rule (TFF's description of its StackOverflow dataset; `docs/your-own.md` shows how to use
another): tags stripped, entities unescaped, lower case, addresses replaced by `<URL>`, characters
outside ASCII dropped, every punctuation character a token of its own, one example a sentence.
"""

from __future__ import annotations

import html
import re

URL_TOKEN = "<URL>"  # upper case on purpose: no lower-cased text can produce it

# Negated classes exclude "<" as well as ">", so a run of unclosed "<" costs linear time.
_BLOCK = re.compile(
    r"</?\s*(?:p|div|br|hr|li|ul|ol|dl|dt|dd|pre|blockquote|table|tr|td|th|h[1-6])\b[^<>]*>",
    re.IGNORECASE,
)
_TAG = re.compile(r"</?[a-zA-Z!][^<>]*>")
# An address does not end with punctuation: that belongs to the sentence around it.
_URL = re.compile(r"(?:(?:https?|ftp)://|www\.)[^\s<>\"]*[^\s<>\".,:;!?')\]]")
_BOUNDARY = re.compile(r"\n+|(?<=[.!?])\s+")
_TOKEN = re.compile(r"<URL>|[a-z0-9]+|[^\sa-z0-9]")


def strip_html(markup: str) -> str:
    r"""Return the text of an HTML fragment; block elements become line breaks.

    Inline tags vanish without a space, so `un<b>do</b>` stays one word. Entities are unescaped
    after the tags are gone: `&lt;b&gt;` in a code sample is text, not markup.

    >>> strip_html("<p>Is 1 &lt; 2?</p><p>un<b>do</b></p>").split("\n")
    ['', 'Is 1 < 2?', '', 'undo', '']
    """
    return html.unescape(_TAG.sub("", _BLOCK.sub("\n", markup)))


def tff_tokens(text: str) -> list[str]:
    """Return the tokens of plain text (no HTML).

    >>> tff_tokens("Don't e-mail me: see http://example.org/x, d\u00e9ja")
    ['don', "'", 't', 'e', '-', 'mail', 'me', ':', 'see', '<URL>', ',', 'dja']
    """
    return _TOKEN.findall(_normalise(text))


def split_sentences(markup: str) -> list[list[str]]:
    """Return the sentences of an HTML fragment, each a non-empty list of tokens.

    A sentence ends at a line break, at the end of a block element, and after `.`, `!` or `?`
    followed by white space.

    >>> split_sentences("<p>Go. It works! v1.2 is out</p><p>&nbsp;</p>")
    [['go', '.'], ['it', 'works', '!'], ['v1', '.', '2', 'is', 'out']]
    """
    pieces = _BOUNDARY.split(_normalise(strip_html(markup)))
    return [tokens for piece in pieces if (tokens := _TOKEN.findall(piece))]


def _normalise(text: str) -> str:
    # A non-breaking space separates words; dropped with the other non-ASCII it would join them.
    text = _URL.sub(URL_TOKEN, text.lower().replace("\xa0", " "))
    return text.encode("ascii", "ignore").decode("ascii")
