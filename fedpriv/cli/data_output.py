"""What `fedpriv data` prints: a corpus, and a progress bar."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedpriv.cli.output import console, errors, print_json, print_table
from fedpriv.data.corpus.corpus import Corpus
from fedpriv.data.files.cache import cache_dir
from fedpriv.data.importers.synthetic import NAME as SYNTHETIC
from fedpriv.running.progress import moves, plain_lines


def figures(corpus: Corpus) -> dict[str, Any]:
    """Return the manifest without its list of files, and where the corpus is."""
    kept = {
        key: value
        for key, value in corpus.manifest.items()
        if key not in ("files", "manifest_sha256")
    }
    return {"path": str(corpus.directory), **kept}


def print_result(corpus: Corpus, as_json: bool) -> None:
    """Print a corpus that was just made."""
    if as_json:
        print_json(figures(corpus))
    else:
        console.print(f"[green]ready:[/] {corpus.directory}", highlight=False, soft_wrap=True)
        print_corpus(corpus)


def print_corpus(corpus: Corpus) -> None:
    """Print what a corpus is, for people."""
    manifest = corpus.manifest
    title = f"[bold]{corpus.name}[/]"
    if corpus.synthetic:
        title += "  [bold yellow]SYNTHETIC: text made by a generator[/]"
    console.print(title, highlight=False, soft_wrap=True)
    for key in ("credit", "licence"):
        console.print(f"{key}: {manifest[key]}", highlight=False, soft_wrap=True)
    console.print(f"source: {json.dumps(manifest['source'])}", highlight=False, soft_wrap=True)
    if manifest["own_text_only"]:
        said = "titles that somebody else wrote are dropped (--own-text-only)"
        console.print(said, soft_wrap=True)
    for reason, number in manifest["dropped"].items():
        console.print(f"left out: {number:,} {reason}", highlight=False, soft_wrap=True)
    table = Table(
        "roster",
        "users",
        "examples",
        "public users",
        "public examples",
        "foreign titles",
        "vocabulary from",
        box=None,
        header_style="bold",
    )
    for name, entry in manifest["rosters"].items():
        mark = " (default)" if name == corpus.default_roster else ""
        table.add_row(
            name + mark,
            f"{entry['num_users']:,}",
            f"{entry['num_examples']:,}",
            f"{entry['num_public_users']:,}",
            f"{entry['num_public_examples']:,}",
            f"{entry['foreign_titles']['share']:.1%}",
            entry["vocabulary"]["source"],
        )
    print_table(table)
    for name, entry in manifest["rosters"].items():
        console.print(f"{name}: {entry['how']}", highlight=False, soft_wrap=True)


@contextmanager
def progress_bar(what: str, *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Give a callback (done, total) that shows on standard error how far a thing is.

    In a terminal by a bar, elsewhere by lines; nothing before its use.
    """
    if quiet:
        yield None
        return
    if not moves(errors):
        with plain_lines(errors) as say:
            yield lambda done, total: say(what + (f": {done / total:.0%}" if total else ""))
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors, transient=True) as bar:
        task = None

        def tell(done: int, total: int) -> None:
            nonlocal task
            if task is None:
                task = bar.add_task(what)
            bar.update(task, completed=done, total=total or None)

        yield tell


def print_corpora(
    here: Sequence[Mapping[str, str]], fetchable: Sequence[Mapping[str, Any]]
) -> None:
    """Print what corpora and raw files are here, and what can be fetched."""
    console.print(f"cache: {cache_dir()}", highlight=False, soft_wrap=True)
    table = Table("corpus", "state", "where", box=None, header_style="bold")
    table.add_column("path", overflow="fold")
    for row in here:
        table.add_row(row["name"], row["state"], row["where"], row["path"])
    if not any(row["name"] == SYNTHETIC for row in here):
        table.add_row(SYNTHETIC, "made when first used, SYNTHETIC", "", "")
    print_table(table)
    table = Table("fetchable", "what it is", "licence", box=None, header_style="bold")
    for row in fetchable:
        table.add_row(row["name"], row["about"], row["licence"])
    print_table(table)
