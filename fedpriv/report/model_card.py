"""The README.md of an exported model."""

from __future__ import annotations

from collections.abc import Mapping

from fedpriv.privacy.statement import run_statement
from fedpriv.report.headline import badges, privacy_terms
from fedpriv.report.privacy_text import as_markdown, markdown_safe
from fedpriv.report.promise import spent
from fedpriv.report.series import RunRecord
from fedpriv.report.tables import flatten
from fedpriv.report.wording import epsilon, percent


def model_card(run: RunRecord, round_num: int, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return the card of the model that a run released after a round, as Markdown."""
    statement = run_statement(run.directory)
    labels = [label for label, _ in badges(run, statement)]
    corpus = run.corpus
    parts = [f"# {markdown_safe(run.name)}"]
    if run.about:
        parts.append(markdown_safe(run.about))
    if labels:
        parts.append("**" + " · ".join(map(markdown_safe, labels)) + "**")
    parts += [
        f"Trained by fedpriv on {_data(run)}; this is the model after round {round_num}.",
        _figures(run, round_num),
        "## Files",
        "- `model.safetensors`: "
        + ", ".join(f"`{name}` {list(shape)}" for name, shape in sorted(shapes.items()))
        + ", float32\n- `vocabulary.json`: the words of the kernel's rows, the tags of its "
        "columns, and how inputs are made",
        'Rank tags with `fedpriv predict . --text "..."`.',
        "## Privacy",
        as_markdown(statement.sections),
        "## Training",
        _table(run),
    ]
    credit = [markdown_safe(corpus[key]) for key in ("credit", "licence") if corpus.get(key)]
    if credit:
        parts += ["## Data", ". ".join(credit) + "."]
    return "\n\n".join(parts) + "\n"


def _data(run: RunRecord) -> str:
    name = markdown_safe(run.corpus.get("name") or "its own data")
    users = run.corpus.get("num_users")
    made_up = " of made-up text" if run.synthetic else ""
    return f"{name}{made_up}" + (f", {int(users):,} rostered users" if users else "")


def _figures(run: RunRecord, round_num: int) -> str:
    """Return the figures measured at the exported round, and the ε spent up to it."""
    released = next((r for r in run.released if r.get("round_num") == round_num), {})
    diagnosed = next((r for r in run.diagnosed if r.get("round_num") == round_num), {})
    terms = "; ".join(markdown_safe(term) for term in privacy_terms(run))
    rows = [("ε", f"{epsilon(spent(run, round_num).value)} ({terms})")]
    for name, value in (
        ("accuracy, public users (released)", released.get("accuracy_public")),
        ("recall at 5, public users (released)", released.get("recall_at_5_public")),
        ("accuracy, rostered users (not covered by ε)", diagnosed.get("accuracy")),
        ("recall at 5, rostered users (not covered by ε)", diagnosed.get("recall_at_5")),
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
