"""`fedpriv data`: list, info, import, fetch, synthesize, split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from fedpriv.cli import data_ids
from fedpriv.cli.data_output import (
    figures,
    overlaps,
    print_corpora,
    print_corpus,
    print_overlaps,
    print_result,
    print_tff,
)
from fedpriv.cli.output import counting, print_json, print_line
from fedpriv.datasets.cache import cache_dir
from fedpriv.datasets.importers import locate
from fedpriv.datasets.importers.downloads import DATASETS
from fedpriv.datasets.importers.dump import import_stackexchange
from fedpriv.datasets.importers.stackoverflow import import_stackoverflow
from fedpriv.datasets.importers.synthetic import Shape, synthesize
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.manifest import FILE_NAME
from fedpriv.datasets.stackexchange.parts import SERVER, cut_corpus
from fedpriv.datasets.stackexchange.rosters import RosterSpec
from fedpriv.datasets.stackexchange.splits import BY_THREAD, KINDS, Kind, Split
from fedpriv.hashes import Progress, file_sha256
from fedpriv.output_paths import check_folder, check_new_folder, writing_to

app = typer.Typer(
    no_args_is_help=True,
    help="Corpora: what is here, where it came from, fetching, importing, rosters.",
)


def register(to: typer.Typer) -> None:
    """Add the commands to the application."""
    to.add_typer(app, name="data")


Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Out = Annotated[
    Path | None, typer.Option(help="Folder of the corpus; by default one in the cache.")
]


class Select(StrEnum):
    """Rules by which a TFF roster is chosen."""

    first_sorted = "first-sorted"
    seeded = "seeded"


class VocabularySource(StrEnum):
    """Users whose text the vocabulary of a TFF corpus comes from."""

    public = "public"
    published = "published"


class Rule(StrEnum):
    """Rules by which `split` chooses a roster."""

    first_sorted = "first-sorted"
    seeded = "seeded"
    most_sentences = "most-sentences"
    all_but_public_tenth = "all-but-public-tenth"
    declared = "declared"


@app.command("list")
def list_corpora(as_json: Json = False) -> None:
    """List the corpora and raw files that are here, and what can be fetched."""
    here = []
    for name in sorted({*locate.NAMES, *_cached_names()}):
        for found in locate.find_candidates(name):
            state = _state(found.path) if found.prepared else "raw, imported when first used"
            here.append(
                {"name": name, "path": str(found.path), "state": state, "where": found.where}
            )
    fetchable = [
        {
            "name": name,
            "about": data.about,
            "licence": data.licence,
            "note": data.note,
            "urls": [source.folder_url + source.file_name for source in data.files],
        }
        for name, data in DATASETS.items()
    ]
    if as_json:
        return print_json({"cache": str(cache_dir()), "here": here, "fetchable": fetchable})
    print_corpora(here, fetchable)


@app.command()
def info(
    corpus: Annotated[
        str | None,
        typer.Argument(help="A prepared corpus, a TFF file, or a name; default: what a run takes."),
    ] = None,
    verify: Annotated[bool, typer.Option(help="Read every file, compare checksums.")] = False,
    as_json: Json = False,
) -> None:
    """Say what a corpus is: users, rosters, vocabulary, counts, what two splits share."""
    path = Path(corpus).expanduser() if corpus is not None else None
    if path is not None and path.is_file() and path.name != FILE_NAME:
        return print_tff(path, as_json)
    with counting("preparing the corpus", quiet=as_json) as tell:
        opened = locate.resolve_corpus(corpus, allow_synthetic=True, progress=tell)
    if verify:
        opened.verify()
    if opened.is_part:  # what threads share is known of the whole alone
        print_json(figures(opened)) if as_json else print_corpus(opened)
        return None
    with counting("splitting the corpus", quiet=as_json) as tell:
        shared = overlaps(opened, tell)
    if as_json:
        print_json({**figures(opened), "shared": shared})
    else:
        print_corpus(opened)
        print_overlaps(opened.default_roster, shared)
    return None


@app.command("import")
def import_command(
    source: Annotated[
        str, typer.Argument(help="Posts.xml (.gz .bz2 .xz .7z), TFF .sqlite (.lzma .xz), or a name")
    ],
    out: Out = None,
    name: Annotated[str | None, typer.Option(help="Name of the corpus.")] = None,
    own_text_only: Annotated[
        bool, typer.Option("--own-text-only", help="Drop titles that somebody else wrote.")
    ] = False,
    split_seed: Annotated[int, typer.Option(help="Seed of each user's 80/20 split.")] = 0,
    max_words: Annotated[int, typer.Option(help="Size of the vocabulary.")] = 10_000,
    max_tags: Annotated[int, typer.Option(help="Size of the tag list.")] = 500,
    select: Annotated[
        Select, typer.Option(help="TFF: first ids in sorted order, or random ones by --seed.")
    ] = Select.first_sorted,
    users: Annotated[
        int | None,
        typer.Option(
            help="TFF: size of the roster; by default 400, or four fifths of the users where "
            "there are no more than 400."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="TFF: seed of --select seeded.")] = 0,
    public_users: Annotated[
        int, typer.Option(help="TFF: users read besides the roster; -1 reads all (slow).")
    ] = 4_000,
    split_name: Annotated[str | None, typer.Option(help="TFF: the split, e.g. train.")] = None,
    tff_split: Annotated[
        str | None,
        typer.Option(help="TFF: its split, heldout or test, whose users are held out."),
    ] = None,
    held_users: Annotated[int, typer.Option(help="TFF: how many, with --tff-split.")] = 100,
    vocabulary: Annotated[
        VocabularySource,
        typer.Option(
            help="TFF: counted over public users, or TFF's published counts, which "
            "include rostered users: no ε covers that vocabulary."
        ),
    ] = VocabularySource.public,
    word_counts: Annotated[
        Path | None, typer.Option(help="TFF: stackoverflow.word_count, with published.")
    ] = None,
    tag_counts: Annotated[
        Path | None, typer.Option(help="TFF: stackoverflow.tag_count, with published.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Import a raw file as a prepared corpus; the same file and options are imported once."""
    path = _raw_file(source)
    common: dict[str, Any] = {
        "own_text_only": own_text_only,
        "split_seed": split_seed,
        "max_words": max_words,
        "max_tags": max_tags,
    }
    if locate.raw_kind(path) == "tff-stackoverflow":
        words, tags = _published(vocabulary, word_counts, tag_counts, path)
        default = "stackoverflow"
        options = {
            **common,
            "select": select.value,
            "num_users": users,
            "seed": seed,
            "public_users": None if public_users < 0 else public_users,
            "split_name": split_name,
            **({"tff_split": tff_split, "held_users": held_users} if tff_split else {}),
            "word_counts": words and str(words),
            "tag_counts": tags and str(tags),
        }

        def make(target: Path, tell: Progress | None) -> Corpus:
            return import_stackoverflow(
                path, target, name=name or default, progress=tell, **options
            )
    else:
        options = common
        default, about = locate.stackexchange_name(path)

        def make(target: Path, tell: Progress | None) -> Corpus:
            return import_stackexchange(
                path,
                target,
                name=name or default,
                progress=tell,
                licence=about.get("licence"),
                credit=about.get("credit"),
                **common,
            )

    check_new_folder(out, "--out")
    with counting(f"importing {path.name}", quiet=as_json) as tell:
        corpus = (
            _into_cache(make, path, name, default, options, tell)
            if out is None
            else make(out, tell)
        )
    print_result(corpus, as_json)


def _into_cache(
    make: Callable[[Path, Progress | None], Corpus],
    path: Path,
    name: str | None,
    default: str,
    options: Mapping[str, Any],
    tell: Progress | None,
) -> Corpus:
    """Return the corpus that these options make of a file, made once; a run takes the default."""
    are_defaults = locate.are_defaults(options)
    if name is None and not are_defaults:
        raise ValueError(
            "these options make another corpus than the one a run takes by default: give it a "
            "--name of its own, or a folder with --out"
        )
    return locate.cached(
        name or default,
        make,
        source=path,
        options={} if are_defaults else _by_content(options),
        progress=tell,
    )


@app.command()
def fetch(
    dataset: Annotated[str, typer.Argument(help=f"One of {', '.join(DATASETS)}.")],
    out: Annotated[Path | None, typer.Option(help="Folder; by default one in the cache.")] = None,
    mirror: Annotated[
        str | None, typer.Option(help="Take the same files from this address instead.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Download a public data set; checked, and going on where a broken transfer stopped."""
    from fedpriv.datasets.importers.downloads import fetch_file

    if dataset not in DATASETS:
        raise ValueError(f"unknown data set {dataset!r}; one of {', '.join(DATASETS)}")
    folder = cache_dir() / "downloads" / dataset if out is None else out
    check_folder(folder, "FEDPRIV_CACHE" if out is None else "--out")
    results = []
    for source in DATASETS[dataset].files:
        bar = counting(f"fetching {source.file_name}", quiet=as_json)
        with writing_to(folder), bar as tell:
            got = fetch_file(source, folder, mirror=mirror, progress=tell)
        results.append({"path": str(got.path), "sha256": got.sha256, "verified": got.verified})
    if as_json:
        return print_json(results)
    for row in results:
        checked = {
            "checksum": "matches its published checksum",
            "first download": "is what was downloaded first",
            "unknown": f"no checksum is published; SHA-256 {row['sha256']} noted",
        }[row["verified"]]
        print_line(f"{row['path']}: {checked}")


@app.command("synthesize")
def synthesize_command(
    out: Out = None,
    seed: Annotated[int, typer.Option(help="Seed of the generator.")] = 0,
    users: Annotated[int, typer.Option(help="Users on the roster.")] = 400,
    sentences: Annotated[int, typer.Option(help="Their sentences, in all.")] = 246_092,
    public_users: Annotated[int, typer.Option(help="Users outside the roster.")] = 100,
    spread: Annotated[
        float,
        typer.Option(help="How unequal users are: sd of log sentences; 0 makes them equal."),
    ] = 1.0,
    as_json: Json = False,
) -> None:
    """Make a synthetic StackOverflow; it says "synthetic" in everything made from it."""
    check_new_folder(out, "--out")
    shape = Shape(
        num_users=users, num_sentences=sentences, public_users=public_users, spread=spread
    )
    with counting("making a synthetic corpus", quiet=as_json) as tell:
        if out is not None:
            corpus = synthesize(out, seed=seed, shape=shape, progress=tell)
        else:
            corpus = locate.cached_synthetic(seed=seed, shape=shape, progress=tell)
    print_result(corpus, as_json)


@app.command()
def split(
    corpus: Annotated[str, typer.Argument(help="A prepared corpus, or a name.")],
    name: Annotated[str, typer.Option(help="Name of the new roster.")],
    rule: Annotated[Rule, typer.Option(help="How its users are chosen.")] = Rule.seeded,
    users: Annotated[int | None, typer.Option(help="How many; by default all eligible.")] = None,
    min_sentences: Annotated[int, typer.Option(help="Users with fewer stay public.")] = 0,
    seed: Annotated[int | None, typer.Option(help="Of the rule seeded; by default 0.")] = None,
    ids: Annotated[
        Path | None, typer.Option(help="File with one user id a line, for the rule declared.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Split a corpus' users into a new roster and its public rest; rosters are never changed."""
    with counting("preparing the corpus", quiet=as_json) as tell:
        opened = locate.resolve_corpus(corpus, allow_synthetic=False, progress=tell)
    chosen = None
    if ids is not None:
        if not ids.is_file():
            raise ValueError(f"no file {ids}; --ids names a file with one user id a line")
        chosen = [line.strip() for line in ids.read_text("utf-8").splitlines() if line.strip()]
    if rule is Rule.seeded and seed is None:
        seed = 0
    opened.add_roster(
        RosterSpec(
            name=name,
            rule=rule.value,
            size=users,
            min_sentences=min_sentences,
            seed=seed,
            ids=chosen,
        )
    )
    if as_json:
        print_json(
            {"corpus": str(opened.directory), "roster": name, **opened.manifest["rosters"][name]}
        )
    else:
        print_corpus(opened)


@app.command()
def part(
    corpus: Annotated[str, typer.Argument(help="A prepared corpus, or a name.")],
    out: Annotated[Path, typer.Option(help="A new folder, for server/, node-1/ and so on.")],
    nodes: Annotated[int, typer.Option(help="How many nodes the users are dealt out to.")],
    roster: Annotated[str | None, typer.Option(help="By default the corpus's own.")] = None,
    users: Annotated[int | None, typer.Option(help="Only the roster's first so many.")] = None,
    kind: Annotated[
        str, typer.Option("--split", help=f"One of {', '.join(KINDS)}: what the run will have.")
    ] = BY_THREAD.kind,
    fold: Annotated[int, typer.Option(help="Which fifth is held out.")] = 0,
    select: Annotated[
        str, typer.Option(help="public or last: how the run selects the model that it returns.")
    ] = "public",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Cut a corpus into parts: each node's holds its own users alone, the server's none."""
    with counting("preparing the corpus", quiet=as_json) as tell:
        opened = locate.resolve_corpus(corpus, allow_synthetic=False, progress=tell)
    if select not in ("public", "last"):
        raise ValueError(f"--select {select!r} is unknown; choose public or last")
    selecting = select == "public" and kind != "by-sentence"
    chosen = Split(kind=cast("Kind", kind), fold=fold, selecting=selecting)
    made = cut_corpus(opened, out, nodes=nodes, roster=roster, users=users, split=chosen)
    sizes = {name: len(ids) for name, ids in made.users.items()}
    if as_json:
        print_json({"path": str(out), "users": sizes, "split": chosen.name})
        return
    for name, size in sizes.items():
        print_line(f"{out / name}: {size} users")
    print_line(f"{out / SERVER}: the list of all, public users, and no rostered user's sentences")


def _cached_names() -> set[str]:
    folder = cache_dir() / "corpora"
    return {
        path.name.rpartition("-")[0]
        for path in folder.glob("*-*")
        if path.is_dir() and not path.name.startswith(".")
    }


def _state(path: Path) -> str:
    try:
        return "prepared, SYNTHETIC" if Corpus.open(path).synthetic else "prepared"
    except ValueError:
        return "damaged"


def _raw_file(source: str) -> Path:
    """Return the raw file that a path or a name means."""
    path = Path(source).expanduser()
    if path.is_file():
        return path
    for found in locate.find_candidates(source):
        if not found.prepared:
            return found.path
    if path.is_dir():
        raise ValueError(f"{source} is a folder; name the raw file in it")
    raise ValueError(
        f"{source!r} is neither a file nor the name of a raw file that is here; see "
        "`fedpriv data list`, or get one with `fedpriv data fetch`"
    )


def _published(
    vocabulary: VocabularySource, words: Path | None, tags: Path | None, source: Path
) -> tuple[Path | None, Path | None]:
    """Return where TFF's published counts are, if they are wanted."""
    if vocabulary is VocabularySource.public:
        if words is not None or tags is not None:
            raise ValueError("--word-counts and --tag-counts go with --vocabulary published")
        return None, None
    words = words or source.with_name("stackoverflow.word_count.tar.bz2")
    tags = tags or source.with_name("stackoverflow.tag_count.tar.bz2")
    return words, tags


def _by_content(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return import options with files named by what is in them."""
    named = {
        key: file_sha256(Path(value))
        for key, value in options.items()
        if key in ("word_counts", "tag_counts") and value and Path(value).is_file()
    }
    return {**options, **named}


data_ids.register(app)
