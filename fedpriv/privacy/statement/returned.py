"""Which model a run returns, why, and how it was chosen, in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpriv.checkpoints.selected_file import AVERAGE, LAST, PUBLIC_MODEL, START
from fedpriv.measures import figures_of, read_measures
from fedpriv.privacy.statement.coverage import as_object


def returned_model(
    options: Mapping[str, Any] | None, summary: Mapping[str, Any] | None = None
) -> list[str]:
    """Return how the model that a run returns is chosen, as paragraphs; nothing of the last.

    Args:
        options: The experiment's.
        summary: Of the finished run; it is not sealed, and so is quoted as that file's words.
    """
    if as_object(options).get("select") != "public":
        return []
    said, _ = returned(summary or {})
    return [
        "It is chosen on public examples, among models that were released and models that public "
        "examples alone make; no rostered user's record is looked at, so the choice costs no ε. "
        "Unless a released model is clearly better, the returned model is made of public examples "
        "alone; ε is spent on training all the same, and holds of every checkpoint.",
        *([f"By summary.json this run returned {said}."] if said else []),
    ]


def returned(summary: Mapping[str, Any]) -> tuple[str, bool]:
    """Return which model a run returns and why, and whether private training did not help.

    Args:
        summary: Of the finished run; "" is said of one that returns its last model unasked.
    """
    found = summary.get("selection")
    if not found:
        return "", False
    measures = figures_of(read_measures(summary))
    judged, name, public = found.get("judged", {}), found["selected"], found["public"]
    whom = f"{found['examples']:,} public examples in {found['groups']:,} groups" if judged else ""
    if not judged:
        return f"{model_words(name)}: {found['reason']}", public

    def compared(one: Mapping[str, float]) -> str:
        share = measures[0].form == "share"
        gain = f"{100 * one['gain']:+.1f}" if share else f"{one['gain']:+.3g}"
        error = f"{100 * one['stderr']:.1f} points" if share else f"{one['stderr']:.3g}"
        return f"{measures[0].label} {gain} ± {error}"

    if not public:
        return (
            f"{model_words(name)} ({compared(judged[name])} over public-only on {whom}, which cost "
            "no ε)",
            False,
        )
    best = max((n for n in judged if n not in _MODELS), key=lambda n: judged[n]["gain"])
    return (
        f"{model_words(name)}: no released model is clearly better on {whom} (the best, "
        f"{model_words(best)}, has {compared(judged[best])} over public-only); more users, a "
        "larger ε or a smaller model would help",
        True,
    )


#: Models that public examples alone make, as `fedpriv.running.selection` names them.
_MODELS = {
    PUBLIC_MODEL: "a model of public examples alone",
    START: "the model of public examples that training started from",
}


def model_words(name: str) -> str:
    """Return what a candidate of the selection is called in a sentence."""
    kind, _, factor = name.partition(" x ")
    released = {AVERAGE: "the average of the released models", LAST: "the last released model"}
    words = _MODELS | released
    said = words.get(kind, kind)
    return f"{said}, drawn back to {factor} of its way from the start" if factor else said
