"""Which model a run returns, why, and how it was chosen, in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpriv.checkpoints.tensor_files import (
    AVERAGE,
    LAST,
    PUBLIC_MODEL,
    PUBLIC_MODELS,
    START,
    START_FILE,
    candidates,
    params_sha256,
    read_selected,
    read_tensors,
    released_models,
)
from fedpriv.measures import figures_of, read_measures
from fedpriv.privacy.statement.coverage import as_object
from fedpriv.privacy.statement.sealed_files import Check


def check_returned(folder: Path, round_num: int, selection: Mapping[str, Any]) -> Check:
    """Compare the model that a run returns with what its last release and its start give.

    Args:
        folder: The run folder, whose checkpoints and start are what its ledger names.
        round_num: Of the last release.
        selection: What the summary says of the model; nothing seals that.
    """
    name, start = str(selection.get("selected")), folder / START_FILE

    def found(text: str, *, ok: bool = False) -> Check:
        return Check(name="returned", ok=ok, text=f"the returned model {name!r} {text}")

    try:
        digest = params_sha256(read_selected(folder, selection))
        last, _ = read_tensors(folder / "checkpoints" / f"round-{round_num:06d}.safetensors")
        begun = read_tensors(start)[0] if start.is_file() else None
        made = candidates(released_models(last), begun)
    except (OSError, KeyError, ValueError) as error:
        return found(f"cannot be compared: {error}")
    if begun is not None:
        made[START] = begun
    names = [one for one, params in made.items() if params_sha256(params) == digest]
    if name == PUBLIC_MODEL:
        if names and names != [START]:
            return found(f"is {names[0]!r}, which private training made")
        return found("is made of public examples, which no line of the ledger names", ok=True)
    if name not in made and begun is None:
        return found("was drawn back to the task's own params, which no file holds", ok=True)
    if name not in names:
        return found("is not what the last release and the start give")
    return found("is what the last release and the start give", ok=True)


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
        summary: Of the finished run; "" is said of one that returns its last model unasked, unless
            that is worse than public examples alone.
    """
    found = summary.get("selection")
    if not found:
        return _below(summary)
    measures = figures_of(read_measures(summary))
    judged, name = found.get("judged", {}), found["selected"]
    public = name in PUBLIC_MODELS
    whom = f"{found['examples']:,} public examples in {found['groups']:,} groups" if judged else ""
    if not judged:
        return f"{model_words(name)}: {found['reason']}", public

    def compared(one: Mapping[str, float]) -> str:
        share = measures[0].form == "share"
        gain = f"{100 * one['gain']:+.1f}" if share else f"{one['gain']:+.3g}"
        error = f"{100 * one['stderr']:.1f} points" if share else f"{one['stderr']:.3g}"
        return f"{measures[0].label} {gain} ± {error}"

    ahead = f"{model_words(name)} ({compared(judged[name])} over public-only on {whom}"
    if not public:
        return f"{ahead}, which cost no ε)", False
    released = [one for one in judged if one not in _MODELS]
    if not released:
        return f"{model_words(name)}: no released model is finite; lower the learning rates", True
    if name == START:
        return f"{ahead}): no released model is clearly better than it; {_HELP}", True
    best = max(released, key=lambda one: judged[one]["gain"])
    return (
        f"{model_words(name)}: no released model is clearly better on {whom} (the best, "
        f"{model_words(best)}, has {compared(judged[best])} over public-only); {_HELP}",
        True,
    )


def _below(summary: Mapping[str, Any]) -> tuple[str, bool]:
    """Return that what was not selected is worse than public examples alone; or nothing."""
    gain = summary.get("gain")
    if not isinstance(gain, int | float) or not gain < 0.0 or summary.get("epsilon") is None:
        return "", False
    measure = figures_of(read_measures(summary))[0]
    by = f"{100 * -gain:.1f} points" if measure.form == "share" else f"{-gain:.3g}"
    return f"a model {by} of {measure.label} below public examples alone; {_HELP}", True


_HELP = "more users, a larger ε or a smaller model would help"
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
