"""`fedpriv encoder`: pretrained encoders of text, and the rows that they make of a corpus."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedpriv.cli.output import counting, errors, print_json, print_line, print_table
from fedpriv.datasets import encoders
from fedpriv.datasets.importers import locate
from fedpriv.hashes import Progress

app = typer.Typer(
    no_args_is_help=True,
    help="Pretrained encoders of text: add one from its files, and embed a corpus by it.",
)


def register(to: typer.Typer) -> None:
    """Add the commands to the application."""
    to.add_typer(app, name="encoder")


Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def add(
    path: Annotated[
        Path,
        typer.Argument(
            help="With config.json, model.safetensors and tokenizer.json.", metavar="FOLDER"
        ),
    ],
    name: Annotated[str | None, typer.Option(help="What to call it.")] = None,
    sha256: Annotated[
        str | None, typer.Option(help="What the SHA-256 of model.safetensors must be.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check an encoder's files, copy them into the cache, and print its id."""
    with _adding(quiet=as_json) as tell:
        found = encoders.add_encoder(path, name, sha256=sha256, progress=tell)
    return _print_encoder(found, as_json)


@contextmanager
def _adding(*, quiet: bool) -> Generator[Progress]:
    """As `counting`; once all bytes are hashed it names what is done with them."""
    from fedpriv.runs.progress import status_line

    if quiet:
        yield lambda done, total: None
        return
    with status_line(errors) as tell:
        yield lambda done, total: tell(
            f"checking the weights: {done / total:.0%}"
            if done < total
            else "weights checked; loading PyTorch and the encoder, then trying it on two texts"
        )


def _print_encoder(found: encoders.EncoderFiles, as_json: bool) -> None:
    encoder = encoders.Encoder(found)
    facts = {
        "id": found.id,
        "sha256": found.sha256,
        "weights_sha256": found.weights_sha256,
        "width": encoder.width,
        "max_tokens": encoder.max_tokens,
        "pooling": encoder.pooling,
        "normalised": encoder.normalised,
        "folder": str(found.folder),
    }
    if as_json:
        return print_json(facts)
    for key, value in facts.items():
        print_line(f"{key} {value}")
    return None


@app.command("list")
def list_added(as_json: Json = False) -> None:
    """List the encoders that were added on this machine."""
    found = encoders.added_encoders()
    if as_json:
        return print_json([{"id": e.id, "folder": str(e.folder)} for e in found])
    table = Table("encoder", "weights' SHA-256", "folder", box=None, header_style="bold")
    for one in found:
        table.add_row(one.id, one.weights_sha256, str(one.folder))
    print_table(table)
    return None


Given = Annotated[str, typer.Argument(help="An id of `fedpriv encoder list`, or a folder.")]
OfCorpus = Annotated[
    str | None, typer.Option(help="A prepared corpus, a dump to import, or a known name.")
]


@app.command()
def embed(
    encoder: Given,
    corpus: OfCorpus = None,
    texts: Annotated[str, typer.Option(help="What is embedded: both, sentence or title.")] = "both",
    processes: Annotated[
        int | None, typer.Option(help="How many, each on one thread; none for one a core.", min=1)
    ] = None,
) -> None:
    """Embed a corpus's sentences and titles, once; a stopped command goes on where it was."""
    from fedpriv.datasets.stackexchange.embeddings import make_embeddings
    from fedpriv.datasets.stackexchange.sentence_store import TEXTS, Text

    found = encoders.Encoder(encoders.find_encoder(encoder))
    with counting("preparing the corpus", quiet=False) as tell:
        opened = locate.resolve_corpus(corpus, allow_synthetic=True, progress=tell)
    chosen: list[Text] = [kind for kind in TEXTS if texts in ("both", kind)]
    if not chosen:
        raise ValueError(f"--texts {texts!r}: give both, sentence or title")
    for kind in chosen:
        with counting(f"embedding {kind}s", quiet=False) as tell:
            made = make_embeddings(opened, found, (kind,), processes=processes, progress=tell)
        rows = made.rows[kind]
        print_line(f"{opened.name}: {len(rows):,} {kind}s, {rows.shape[1]} numbers each")


@app.command()
def reduce(
    encoder: Given,
    dimensions: Annotated[int, typer.Option(help="Numbers of a row of the new encoder.")],
    corpus: OfCorpus = None,
    roster: Annotated[
        str | None, typer.Option(help="Whose public users; none for the corpus's default roster.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What to call it; none for the encoder's and the number.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Add an encoder of fewer dimensions: principal components of public users' titles."""
    from fedpriv.datasets.stackexchange.embeddings import reduce_encoder

    with counting("preparing the corpus", quiet=as_json) as tell:
        found = reduce_encoder(
            locate.resolve_corpus(corpus, allow_synthetic=True, progress=tell),
            encoders.Encoder(encoders.find_encoder(encoder)),
            dimensions,
            roster=roster,
            name=name,
            progress=tell,
        )
    _print_encoder(found, as_json)
