"""`fedpriv report`, `compare`, `export` and `predict`: readers of finished and running runs."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from fedpriv.checkpoints.vocabulary import EncoderInputs
from fedpriv.cli.output import errors, print_json, print_line, print_table
from fedpriv.datasets.encoders import Encoder, added_encoders
from fedpriv.datasets.importers.tokens import tff_tokens
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.splits import BY_SENTENCE
from fedpriv.output_paths import check_file, check_new_folder, writing_to
from fedpriv.privacy.epsilon import format_delta
from fedpriv.privacy.statement.statement import describe_candidate
from fedpriv.report.comparison.groups import (
    Column,
    Group,
    Section,
    columns_of,
    find_groups,
    gaps,
    mismatches,
    nouns_of,
    sections_of,
    spread_note,
)
from fedpriv.report.comparison.page import check_outputs, write_file
from fedpriv.report.comparison.tables import as_rows, gain_cell, measure_cell, references_of
from fedpriv.report.export import (
    NO_WORDS,
    VOCABULARY,
    Vocabulary,
    export_run,
    has_vocabulary,
    load_model,
    of_several,
    which_model,
)
from fedpriv.report.page import write_report
from fedpriv.report.run_record import RunRecord, read_run
from fedpriv.report.wording import NOTHING, epsilon, percent
from fedpriv.untrusted_text import plain

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("report")(report)
    app.command("compare")(compare)
    app.command("export")(export)
    app.command("predict")(predict)


def report(
    run: Annotated[Path, typer.Argument(help="A run folder, finished or under way.")],
    replicate: Annotated[
        list[Path] | None,
        typer.Option(
            help="A run of the same experiment with another seed: the head of the report then "
            "shows means, and intervals of 4 runs or more. May be given several times."
        ),
    ] = None,
    open_page: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in a browser.")
    ] = False,
) -> None:
    """Write the report of a run, one self-contained page, into its folder."""
    with writing_to(run):
        path = write_report(run, replicates=replicate or ())
    print_line(str(path))
    if open_page:
        webbrowser.open(path.resolve().as_uri())


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.", metavar="RUN...")],
    as_json: AsJson = False,
    out: Annotated[
        list[Path] | None,
        typer.Option(
            help="Write the comparison into a file too: .html a page with plots, .csv, .tex or "
            ".json a table, and .svg accuracy against ε. May be given several times."
        ),
    ] = None,
) -> None:
    """Put runs side by side; runs that differ in their seed only become one line.

    Folders that hold no run are named and left out.
    """
    for path in out or ():
        check_file(path, "--out")
    check_outputs(out or ())
    groups, left_out = find_groups(runs)
    for reason in left_out:
        print_line(f"left out: {reason}", errors)
    for path in out or ():
        with writing_to(path):
            write_file(groups, path)
    if as_json:
        print_json(as_rows(groups))
        return
    sections = sections_of(groups)
    for section in sections:
        if len(sections) > 1:
            print_line(section.title)
        _show_section(section)
        if len(sections) > 1:
            print_line("")
    for path in out or ():
        print_line(str(path))


def _show_section(section: Section) -> None:
    groups = list(section.groups)
    table, note = _comparison_table(section)
    print_table(table)
    print_line(note)
    for sentence in gaps(groups):
        print_line(f"‡ {sentence}")
    found = mismatches(groups)
    if found:
        print_line(f"Not like with like: these runs differ in {', '.join(found)}.")


def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    to: Annotated[Path, typer.Option(help="The folder to make.")],
    round_num: Annotated[
        int | None, typer.Option("--round", help="Which checkpoint; the newest if not given.")
    ] = None,
    last_iterate: Annotated[
        bool,
        typer.Option(
            "--last-iterate", help="The params that training went on from, not their average."
        ),
    ] = False,
    corpus: Annotated[
        Path | None,
        typer.Option(help="Where the prepared corpus is now, if it has moved since the run."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a run's model, and a card that states its privacy; a tag model's vocabulary too."""
    check_new_folder(to, "--to", or_empty=True)
    vocabulary, record = None, read_run(run)
    if has_vocabulary(record) and not (run / VOCABULARY).is_file():
        vocabulary = corpus_vocabulary(record, corpus)
    with writing_to(to):
        chosen = export_run(
            run, to, round_num=round_num, last_iterate=last_iterate, vocabulary=vocabulary
        )
    if as_json:
        print_json({"path": str(to), "round": chosen, "run_dir": str(run)})
    else:
        if round_num is None and not last_iterate and record.selection:
            which = describe_candidate(record.selection["selected"])
        else:
            which = which_model(record, chosen, last_iterate=last_iterate)
        print_line(f"{to}: {plain(which)}")
        _say_several(record)


def predict(
    model: Annotated[
        Path, typer.Argument(help="A folder made by `fedpriv export`, or a run folder.")
    ],
    text: Annotated[str, typer.Option(help="A sentence, or a question's text; - reads it in.")],
    title: Annotated[
        str, typer.Option(help="The question's title; a model of titles alone takes it, or --text.")
    ] = "",
    top: Annotated[int, typer.Option(min=1, help="How many tags.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Rank tags for a text, by a model of tags only; your own: docs/pretrained.md."""
    vocabulary, record = None, None
    if (model / "experiment.json").is_file():
        record = read_run(model)
    if record is not None and not (model / VOCABULARY).is_file():
        if not has_vocabulary(record):
            raise ValueError(f"the model of {model} cannot be asked: {NO_WORDS}")
        vocabulary = corpus_vocabulary(record, None)
    tokens = tff_tokens(sys.stdin.read() if text == "-" else text)
    found = load_model(model, vocabulary)
    if found.vocabulary.encoder is not None:
        found = replace(found, encode=_encoder_of(found.vocabulary.encoder).encode)
    title_tokens = tff_tokens(title)
    ranked = found.rank(tokens, top, title=title_tokens)
    encoder, words = found.vocabulary.encoder, set(found.vocabulary.words)
    known = sum(token in words for token in (*tokens, *title_tokens))
    if as_json:
        tags = [{"tag": tag, "probability": share} for tag, share in ranked]
        how = {"num_known_tokens": known} if encoder is None else {"encoder": encoder.id}
        print_json({"tags": tags, "num_tokens": len(tokens) + len(title_tokens), **how})
        return
    table = Table(box=None, show_header=False)
    for tag, share in ranked:
        table.add_row(Text(plain(tag)), percent(share))
    print_table(table)
    if record is not None:
        _say_several(record)
    if not known and encoder is None:
        print_line("None of the words is in the vocabulary: these are the commonest tags.")


def _encoder_of(described: EncoderInputs) -> Encoder:
    """Return the encoder that a model was trained with, by the digest of its files.

    Raises:
        ValueError: If none with these files was added here.
    """
    for files in added_encoders():
        if files.sha256 == described.sha256:
            return Encoder(files)
    raise ValueError(
        f"the model's inputs are rows of encoder {described.id}, which is not on this machine; add "
        f"it with `fedpriv encoder add FOLDER` (digest of its files: {described.sha256})"
    )


def _say_several(record: RunRecord) -> None:
    said = of_several(record)
    if said is not None:
        print_line(said)


def corpus_vocabulary(run: RunRecord, corpus: Path | None) -> Vocabulary:
    """Return the vocabulary that a run was trained with, from its corpus.

    Args:
        run: The run.
        corpus: Where the corpus is; None looks where it was.

    Raises:
        ValueError: If the corpus is not there, or its roster is not the one of the run.
    """
    where = corpus or run.corpus.get("path")
    if where is None:
        raise ValueError(
            f"{run.folder} keeps no vocabulary and names no corpus; `fedpriv export --corpus` "
            "takes it from one"
        )
    if not Path(where).is_dir():
        raise ValueError(f"the run's corpus is not at {where} any more; give --corpus PATH")
    # Runs that keep no vocabulary are older than any other split.
    view = Corpus.open(Path(where)).view(
        roster=run.corpus.get("roster"), users=run.options.get("task.users"), split=BY_SENTENCE
    )
    if view.roster_sha256 != run.corpus.get("roster_sha256"):
        raise ValueError(
            f"the roster of the corpus at {where} is not the run's, so its words may be others; "
            "give --corpus PATH of the corpus that the run was trained on"
        )
    inputs = str(run.options.get("task.inputs") or "tff")
    if inputs == "tf-idf" or run.options.get("task.pairs") or run.options.get("task.encoder"):
        raise ValueError(
            f"{run.folder} has lost its {VOCABULARY}, which alone keeps the weights and pairs "
            "of words, or the encoder, that its model was trained with; restore that file"
        )
    return Vocabulary(words=tuple(view.words), tags=tuple(view.tags), inputs=inputs)


def _comparison_table(section: Section) -> tuple[Table, str]:
    groups, nouns = list(section.groups), nouns_of(section)
    rows, lead = as_rows(groups), section.lead
    table = Table(box=None, header_style="bold", pad_edge=False)
    names = ["experiment", "public-only", *(group.label for group in groups)]
    longest = max(len(word) for name in names for word in plain(name).split())
    table.add_column("experiment", overflow="fold", min_width=min(longest, 40))
    for column in (columns := _columns(groups)):
        # Heads wrap between words and are never cut: what distinguishes them is at their ends.
        name = f"{column.measure.label}{'*' if column.diagnosed else '†'}"
        whole = [
            *name.split(),
            *(measure_cell(column.measure, group.measure(column)).line for group in groups),
        ]
        table.add_column(name, justify="right", min_width=max(map(len, whole)))
    gains = any(group.gain for group in groups)
    for name in (*(["gain"] if gains else []), "ε", "δ", f"{nouns.turn}s", "seeds"):
        table.add_column(name, justify="right", no_wrap=True)
    labels = [_labels(group, row) for group, row in zip(groups, rows, strict=True)]
    longest = max((len(word) for text in labels for word in text.split()), default=0)
    table.add_column("", min_width=longest)
    for group, row, text in zip(groups, rows, labels, strict=True):
        table.add_row(
            Text(plain(group.label)),
            *(measure_cell(column.measure, group.measure(column)).line for column in columns),
            *([gain_cell(group).line] if gains else []),
            epsilon(group.epsilon) + ("‡" if group.coverage.mark else ""),
            format_delta(row["delta"]) if row["delta"] is not None else NOTHING,
            f"{row['rounds']:,}",
            str(len(group.runs)),
            text,
        )
    for name, spent, value in references_of(section):
        cells = [measure_cell(c.measure, value).line if c == lead else NOTHING for c in columns]
        cells += [*([NOTHING] if gains else []), spent]
        table.add_row(name, *cells, NOTHING, NOTHING, NOTHING, "")
    terms = dict.fromkeys(
        f"{row['relation']}, per {row['unit']}, by {row['accountant']}"
        for row in rows
        if row["private"]
    )
    note = f"* {nouns.diagnosed}. † {nouns.released}."
    if gains:
        note += " Gain: over public-only, on the same examples."
    elif section.public_only is None:
        note += " Public-only was not measured."
    for said in filter(None, (section.public_only_note, spread_note(section))):
        note += f" {said}"
    return table, f"ε: {'; '.join(terms)}. {note}" if terms else note


def _labels(group: Group, row: Mapping[str, Any]) -> str:
    """Return what a line must not be read without."""
    labels = ["SYNTHETIC"] if row["synthetic"] else []
    labels += filter(None, (group.unfinished_mark, group.public_model))
    if not row["private"]:
        labels.append("not private")
    elif row["no_meaningful_protection"]:
        labels.append("no meaningful protection")
    return ", ".join(labels)


def _columns(groups: list[Group]) -> list[Column]:
    """Return what a terminal has room for: of public users only what heads a group's figures.

    Columns that nothing was measured for would only be in the way.
    """
    headlines = [group.head.figures[0] for group in groups if group.head.figures]
    return [
        column
        for column in columns_of(groups)
        if (column.diagnosed or column.measure in headlines)
        and any(group.measure(column) for group in groups)
    ]
