"""Output of `fedpriv data`: a corpus, what its splits share, a TFF file, a progress bar."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from fedpriv.cli.output import console, counting, print_json, print_line, print_table
from fedpriv.datasets.cache import cache_dir
from fedpriv.datasets.importers import locate
from fedpriv.datasets.importers.synthetic import NAME as SYNTHETIC
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.overlap import NEAR, measure_overlap
from fedpriv.datasets.stackexchange.splits import BY_SENTENCE, BY_THREAD
from fedpriv.datasets.tff_files import open_client_data


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
    title = f"[bold]{escape(corpus.name)}[/]"
    if corpus.synthetic:
        title += "  [bold yellow]SYNTHETIC: text made by a generator[/]"
    console.print(title, highlight=False, soft_wrap=True)
    for key in ("credit", "licence"):
        print_line(f"{key}: {manifest[key]}")
    print_line(f"source: {json.dumps(manifest['source'])}")
    if manifest["own_text_only"]:
        print_line("titles that somebody else wrote are dropped (--own-text-only)")
    for reason, number in manifest["dropped"].items():
        print_line(f"left out: {number:,} {reason}")
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
            _share(entry["foreign_titles"]["share"]),
            entry["vocabulary"]["source"],
        )
    print_table(table)
    for name, entry in manifest["rosters"].items():
        print_line(f"{name}: {entry['how']}")


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def overlaps(corpus: Corpus, tell: Callable[[int, int], None] | None) -> dict[str, Any]:
    """Return what training and test share by thread and by sentence, of the default roster.

    A split that the corpus cannot be given says why under "missing".
    """
    found: dict[str, Any] = {}
    for split in (BY_THREAD, BY_SENTENCE):
        try:
            view = corpus.view(split=split, progress=tell)
            found[split.kind] = measure_overlap(view, corpus.texts("title")).to_json()
        except ValueError as error:
            found[split.kind] = {"missing": str(error)}
    return found


def print_overlaps(roster: str, shared: Mapping[str, Mapping[str, Any]]) -> None:
    """Print what training and test share, a split a column."""
    table = Table(
        f"training and test of {roster}",
        *(f"{kind}, as AdaDPS's code did" if kind == "by-sentence" else kind for kind in shared),
        box=None,
        header_style="bold",
    )
    found = [None if "missing" in one else one for one in shared.values()]

    def row(what: str, cell: Callable[[Mapping[str, Any]], str]) -> None:
        table.add_row(what, *("-" if one is None else cell(one) for one in found))

    def size(one: Mapping[str, int]) -> str:
        return f"{one['sentences']:,} in {one['threads']:,} threads, {one['users']:,} users"

    def share(one: Mapping[str, float] | None, of: str) -> str:
        return "not kept" if one is None else f"{one[of]:.1%}"

    row("training sentences", lambda one: size(one["training"]))
    row("public training sentences, asked in public", lambda one: size(one["public"]))
    row(
        "users without training text, those tested",
        lambda one: f"{one['users_without_training']:,}, {one['measured_without_training']:,}",
    )
    row("test sentences", lambda one: size(one["measured"]))
    for key in ("thread", "title", "label_and_title"):
        what = f"{key.replace('_', ' ')} in training text"
        row(f"  {what} of the same user", lambda one, k=key: share(one[k], "same_user"))
        row(f"  {what} of anyone", lambda one, k=key: share(one[k], "anyone"))
    for similarity in map(str, NEAR):
        what = f"test threads with a title as in training, Jaccard similarity {similarity} or more"
        row(what, lambda one, s=similarity: share(one["near"], s))
    print_table(table)
    for kind, one in shared.items():
        if "missing" in one:
            print_line(f"{kind}: {one['missing']}")


def print_tff(path: Path, as_json: bool) -> None:
    """Print what a raw TFF file holds.

    Raises:
        ValueError: it is another raw file.
    """
    if locate.raw_kind(path) != "tff-stackoverflow":
        raise ValueError(f"{path} is a raw dump; import it first with `fedpriv data import`")
    with (
        counting(f"unpacking {path.name}", quiet=as_json) as tell,
        open_client_data(path, progress=tell) as data,
    ):
        facts = {
            "path": str(path),
            "schema": data.schema.name,
            "split": data.split_name,
            "clients": len(data.client_ids),
            "examples": sum(data.num_examples.values()),
            "fields": {
                name: f"{field.dtype}{list(field.shape)}"
                for name, field in data.schema.fields.items()
            },
        }
    if as_json:
        return print_json(facts)
    for key, value in facts.items():
        console.print(f"[bold]{key}[/] {value}", highlight=False, soft_wrap=True)


def print_corpora(
    here: Sequence[Mapping[str, str]], fetchable: Sequence[Mapping[str, Any]]
) -> None:
    """Print what corpora and raw files are here, and what can be fetched."""
    print_line(f"cache: {cache_dir()}")
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
