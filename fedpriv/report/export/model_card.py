"""The README.md of an exported model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedpriv.checkpoints.aggregates import RULES
from fedpriv.checkpoints.tensor_files import PUBLIC_MODELS
from fedpriv.privacy.statement.statement import describe_candidate, run_statement
from fedpriv.report.headline import badges, privacy_terms
from fedpriv.report.privacy_text import as_markdown, markdown_safe
from fedpriv.report.promise import spent
from fedpriv.report.series import RunRecord
from fedpriv.report.tables import flatten
from fedpriv.report.unit_labels import labels_of
from fedpriv.report.wording import SPENT_ALL_THE_SAME, epsilon, figure


def model_card(
    run: RunRecord,
    round_num: int,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    vocabulary: bool = True,
    files: Sequence[str] = (),
    frozen: Sequence[str] = (),
    returned: bool = False,
) -> str:
    """Return the card of the model that a run released after a round, as Markdown.

    Args:
        run: The run.
        round_num: After which round.
        shapes: Of the params, by name.
        vocabulary: Whether the folder holds one, as that of a tag model does.
        files: Others that the task brought.
        frozen: Which of the params were not trained.
        returned: Whether it is the one that was selected on public examples.
    """
    statement = run_statement(run.directory)
    labels = [label for label, _ in badges(run, statement)]
    corpus = run.corpus
    parts = [f"# {markdown_safe(run.title)}"]
    if run.about:
        parts.append(markdown_safe(run.about))
    if labels:
        parts.append("**" + " · ".join(map(markdown_safe, labels)) + "**")
    parts += [
        f"Trained by fedpriv on {_data(run)}; this is {_which(run, round_num, returned)}.",
        *filter(None, [of_several(run)]),
        _figures(run, round_num, returned),
        "## Files",
        *_files(shapes, vocabulary, files, frozen),
        "## Privacy",
        as_markdown(statement.sections),
        "## Training",
        _table(run),
    ]
    credit = [markdown_safe(corpus[key]) for key in ("credit", "licence") if corpus.get(key)]
    if credit:
        parts += ["## Data", ". ".join(credit) + "."]
    return "\n\n".join(parts) + "\n"


def _which(run: RunRecord, round_num: int, returned: bool) -> str:
    """Return which of a run's models this is."""
    if not returned or not run.selection:
        return f"the model after {labels_of(run.unit).turn} {round_num}"
    name = describe_candidate(run.selection["selected"])
    if run.selection["selected"] not in PUBLIC_MODELS:
        return f"{name}, selected on public examples"
    return (
        f"{name}, selected on public examples over what private training released: it is made of "
        f"public examples alone. {SPENT_ALL_THE_SAME.removesuffix('.')}"
    )


def of_several(run: RunRecord) -> str | None:
    """Return a sentence where a run's figures are of several models and this one is the last."""
    rule = run.options.get("aggregate")
    if rule not in RULES:
        return None
    return (
        f"The run's figures are of what its last {run.options.get('aggregate.k')} models answer "
        f"together ({rule}); this model is the last of them, and was not measured alone."
    )


def _files(
    shapes: Mapping[str, tuple[int, ...]],
    vocabulary: bool,
    files: Sequence[str],
    frozen: Sequence[str],
) -> list[str]:
    tensors = ", ".join(f"`{name}` {list(shape)}" for name, shape in sorted(shapes.items()))
    model = f"- `model.safetensors`: {tensors}, float32"
    if frozen:
        names = ", ".join(f"`{markdown_safe(name)}`" for name in frozen)
        model += f"; not trained, but as the task gave them: {names}"
    for name in files:
        model += f"\n- `{markdown_safe(name)}`: brought by the task"
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
    synthetic = "" if not run.synthetic else " of synthetic "
    if synthetic:
        synthetic += "text" if run.unit == "user" else "examples"
    return f"{name}{synthetic}" + (f", {int(users):,} {nouns.rostered}s" if users else "")


def _figures(run: RunRecord, round_num: int, returned: bool) -> str:
    """Return the figures measured of the exported model, and the ε spent up to its round."""
    released = next((r for r in run.released if r.get("round_num") == round_num), {})
    diagnosed = next((r for r in run.diagnosed if r.get("round_num") == round_num), {})
    if returned and run.selection:
        released = diagnosed = run.summary
    nouns = labels_of(run.unit)
    public, rostered = f"{nouns.public}s (released)", f"{nouns.rostered}s (not covered by ε)"
    terms = "; ".join(markdown_safe(term) for term in privacy_terms(run))
    shown = run.coverage.qualified(epsilon(spent(run, round_num).value))
    rows = [("ε", f"{markdown_safe(shown)} ({terms})")]
    sides = ((public, released, True), (rostered, diagnosed, False))
    for whom, record, is_public in sides:
        for measure in run.figures:
            value = record.get(measure.released_name if is_public else measure.name)
            if value is not None:
                name = f"{markdown_safe(measure.label)}, {whom}"
                rows.append((name, figure(measure, value)))
    return "\n".join(["| measure | value |", "|---|---|", *(f"| {n} | {v} |" for n, v in rows)])


def _table(run: RunRecord) -> str:
    rows = [
        f"| {markdown_safe(name)} | {markdown_safe(value)} |"
        for name, value in flatten(run.options or run.plan)
    ]
    return "\n".join(["| option | value |", "|---|---|", *rows])
