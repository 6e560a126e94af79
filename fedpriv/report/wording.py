"""Words and number formats of the pages, and the privacy statement as HTML and as Markdown."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

from fedpriv.measures import Measure, grouped
from fedpriv.privacy.epsilon import rounded_up
from fedpriv.privacy.plan import BY_EXAMPLE, UnitWords, unit_words
from fedpriv.untrusted_text import plain

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
NOTHING = "–"


def percent(value: float | None, digits: int = 1) -> str:
    r"""Return a share as a percentage, with a space that does not break.

    >>> percent(0.2484)
    '24.8\u202f%'
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{100 * value:.{digits}f}\u202f%"


def figure(measure: Measure, value: float | None) -> str:
    """Return a measure's value: a share as a percentage, another as a number.

    >>> error = Measure(name="error", label="error", higher_is_better=False)
    >>> figure(error, 0.69312), figure(error, None)
    ('0.6931', '–')
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    return percent(value) if measure.form == "share" else number(float(value))


def difference(measure: Measure, value: float | None) -> str:
    """Return a difference of two values with its sign: of shares in points.

    >>> share = Measure(name="share", label="share", form="share")
    >>> difference(share, 0.04), difference(share, -0.012), difference(share, None)
    ('+4.0 points', '−1.2 points', '–')
    >>> difference(share, 0.0)
    '0.0 points'
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    size = f"{100 * abs(value):.1f} points" if measure.form == "share" else number(abs(value))
    return f"{'−' if value < 0 else '+' if value > 0 else ''}{size}"


def half_width(measure: Measure, value: float) -> str:
    """Return half an interval of a measure, without a unit."""
    return f"{100 * value:.1f}" if measure.form == "share" else number(float(value), 2)


def direction(measure: Measure) -> str:
    """Return a remark on which way is better where it is not upward."""
    return "" if measure.higher_is_better else "lower is better"


def epsilon(value: float | None) -> str:
    """Return an ε, rounded up: a guarantee is never printed smaller than it is.

    >>> epsilon(7.991), epsilon(8.0), epsilon(math.inf), epsilon(1234.2)
    ('8.00', '8.00', '∞', '1,235')
    """
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞"
    digits = 2 if value < 100 else 0
    return f"{rounded_up(value, digits):,.{digits}f}"


def number(value: object, digits: int = 4) -> str:
    """Return a number with few digits and grouped thousands; other values as text.

    >>> number(246092), number(0.00012345), number(12.5), number(None)
    ('246,092', '1.234 × 10⁻⁴', '12.5', '–')
    """
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return grouped(value)
    if not isinstance(value, float):
        return plain(value)
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0 or math.isnan(value) or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.{digits}g}" if abs(value) < 10**digits else f"{value:,.0f}"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa} × 10{str(int(exponent)).translate(_SUPERSCRIPT)}"


# What a run folder calls them whatever the unit, because an example is a user with one record.
_NAMES = {
    "num_users": "num_examples",
    "num_public_users": "num_public_examples",
    "max_examples_per_user": "",
    "num_rounds": "num_steps",
    "expected_cohort_size": "expected_batch_size",
    "cohort_cap": "batch_cap",
}


def words_of_all(given: Iterable[UnitWords]) -> UnitWords:
    """Return the words of runs that are read side by side; of both kinds where they differ.

    A step is a round, of examples: turns of both kinds are called rounds.

    >>> users, examples = unit_words("user"), unit_words("example")
    >>> words_of_all([examples, examples]).public, words_of_all([users, examples]).public
    ('test example', 'public users or test example')
    >>> words_of_all([users, replace(users, publicity="private")]).released
    'public users: released or private'
    """
    kinds = list(dict.fromkeys(given))
    if len(kinds) == 1:
        return kinds[0]
    names = ("contributor", "total", "rostered", "tested", "public")
    nouns = {name: dict.fromkeys(getattr(kind, name) for kind in kinds) for name in names}
    both = {name: "s or ".join(found) for name, found in nouns.items()}
    both["publicity"] = " or ".join(dict.fromkeys(kind.publicity for kind in kinds))
    return replace(unit_words("user"), **both)


def by_unit(values: Mapping[str, Any], unit: str) -> dict[str, Any]:
    """Return a corpus or plan under the names that fit the unit, at every depth.

    What has no meaning is left out.

    >>> by_unit({"num_users": 3, "max_examples_per_user": None, "delta": 0.1}, "example")
    {'num_examples': 3, 'delta': 0.1}
    """
    if unit == "user":
        return dict(values)
    kept = "max_examples_per_user" if unit == BY_EXAMPLE else ""
    named = {name if name == kept else _NAMES.get(name, name): v for name, v in values.items()}
    return {
        name: by_unit(cast("Mapping[str, Any]", value), unit)
        if isinstance(value, Mapping)
        else value
        for name, value in named.items()
        if name
    }


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    """Yield dotted names with values as text, in the given order.

    >>> list(flatten({"a": {"b": 1, "c": None}, "d": [1, 2]}))
    [('a.b', '1'), ('a.c', '–'), ('d', '1, 2')]
    """
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            simple = all(not isinstance(item, Mapping | list) for item in value)
            text = ", ".join(map(exact, value)) if simple else json.dumps(value)
            yield f"{prefix}{name}", text or NOTHING
        else:
            yield f"{prefix}{name}", exact(value)


def exact(value: object) -> str:
    """Return a configuration value as it would be typed: all digits, no groups."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def markdown_safe(value: object) -> str:
    r"""Return any value as one line of Markdown text that means only itself.

    >>> print(markdown_safe("<b> [x](y) 5*3 $a$"))
    &lt;b> \[x\](y) 5\*3 \$a\$
    """
    text = " ".join(plain(value).split()).replace("&", "&amp;").replace("<", "&lt;")
    for sign in "\\`*_[]#|$":
        text = text.replace(sign, "\\" + sign)
    return text
