"""The README.md of an exported model."""

from __future__ import annotations

from collections.abc import Mapping

from fedpriv.privacy.statement.statement import run_statement
from fedpriv.report.headline import badges, privacy_terms
from fedpriv.report.privacy_text import as_markdown, markdown_safe
from fedpriv.report.promise import spent
from fedpriv.report.series import RunRecord
from fedpriv.report.tables import flatten
from fedpriv.report.unit_labels import labels_of
from fedpriv.report.wording import epsilon, percent


def model_card(
    run: RunRecord,
    round_num: int,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    vocabulary: bool = True,
) -> str:
    """Return the card of the model that a run released after a round, as Markdown.

    Args:
        run: The run.
        round_num: After which round.
        shapes: Of the params, by name.
        vocabulary: Whether the folder holds one, as that of a tag model does.
    """
    statement = run_statement(run.directory)
    labels = [label for label, _ in badges(run, statement)]
    corpus = run.corpus
    parts = [f"# {markdown_safe(run.name)}"]
    if run.about:
        parts.append(markdown_safe(run.about))
    if labels:
        parts.append("**" + " · ".join(map(markdown_safe, labels)) + "**")
    parts += [
        f"Trained by fedpriv on {_data(run)}; this is the model after "
        f"{labels_of(run.unit).turn} {round_num}.",
        _figures(run, round_num),
        "## Files",
        *_files(shapes, vocabulary),
        "## Privacy",
        as_markdown(statement.sections),
        "## Training",
        _table(run),
    ]
    credit = [markdown_safe(corpus[key]) for key in ("credit", "licence") if corpus.get(key)]
    if credit:
        parts += ["## Data", ". ".join(credit) + "."]
    return "\n\n".join(parts) + "\n"


def _files(shapes: Mapping[str, tuple[int, ...]], vocabulary: bool) -> list[str]:
    tensors = ", ".join(f"`{name}` {list(shape)}" for name, shape in sorted(shapes.items()))
    model = f"- `model.safetensors`: {tensors}, float32"
    if not vocabulary:
        return [model, "Load it with the safetensors library, into the model it was trained as."]
    return [
        f"{model}\n- `vocabulary.json`: the words of the kernel's rows, the tags of its columns, "
        "and how inputs are made",
        'Rank tags with `fedpriv predict . --text "..."`.',
    ]


def _data(run: RunRecord) -> str:
    name = markdown_safe(run.corpus.get("name") or "its own data")
    users = run.corpus.get("num_users")
    nouns = labels_of(run.unit)
    made_up = "" if not run.synthetic else " of made-up "
    if made_up:
        made_up += "text" if run.unit == "user" else "examples"
    return f"{name}{made_up}" + (f", {int(users):,} {nouns.rostered}s" if users else "")


def _figures(run: RunRecord, round_num: int) -> str:
    """Return the figures measured at the exported round, and the ε spent up to it."""
    released = next((r for r in run.released if r.get("round_num") == round_num), {})
    diagnosed = next((r for r in run.diagnosed if r.get("round_num") == round_num), {})
    nouns = labels_of(run.unit)
    public, rostered = f"{nouns.public}s (released)", f"{nouns.rostered}s (not covered by ε)"
    terms = "; ".join(markdown_safe(term) for term in privacy_terms(run))
    told = run.coverage.beside(epsilon(spent(run, round_num).value))
    rows = [("ε", f"{markdown_safe(told)} ({terms})")]
    for name, value in (
        (f"accuracy, {public}", released.get("accuracy_public")),
        (f"recall at 5, {public}", released.get("recall_at_5_public")),
        (f"accuracy, {rostered}", diagnosed.get("accuracy")),
        (f"recall at 5, {rostered}", diagnosed.get("recall_at_5")),
    ):
        if value is not None:
            rows.append((name, percent(value)))
    return "\n".join(["| measure | value |", "|---|---|", *(f"| {n} | {v} |" for n, v in rows)])


def _table(run: RunRecord) -> str:
    rows = [
        f"| {markdown_safe(name)} | {markdown_safe(value)} |"
        for name, value in flatten(run.options)
    ]
    return "\n".join(["| option | value |", "|---|---|", *rows])
