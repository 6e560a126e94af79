"""Search for a corpus: by argument, environment, cache or data folder; or its synthesis.

Raw files (a Stack Exchange dump, TFF's StackOverflow) are imported once into the cache, under a key
made of the corpus' name, the file's SHA-256, the options and the format's version, and opened from
there ever after. Two processes that want the same one wait for each other.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from fedpriv.datasets.cache import cache_dir, data_folders, open_or_make, remembered_sha256
from fedpriv.datasets.importers.dump import import_stackexchange, site_name
from fedpriv.datasets.importers.stackoverflow import import_stackoverflow
from fedpriv.datasets.importers.synthetic import GENERATOR, Shape, synthesize
from fedpriv.datasets.importers.synthetic import NAME as SYNTHETIC
from fedpriv.datasets.stackexchange import manifest as manifests
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.tff_files import SQLITE_MAGIC
from fedpriv.hashes import Progress

STAND_IN = Shape(num_users=4_000, num_sentences=120_000, public_users=60)
"""Synthetic corpus where there is no real one: many users with little text, few public ones.

Of the 400 users of `Shape()` the noise of ε = 8 leaves less than their hundred public users know.
"""
NAMES = ("onstartups", "stackoverflow", SYNTHETIC)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ABOUT: Mapping[str, Mapping[str, str]] = {
    "onstartups": {
        "licence": "CC BY-SA 3.0",
        "credit": "contributors of Answers on Startups, via collapsed-stacks/onstartups",
    },
}
# Where a folder of data keeps the raw files of a name, best first.
_PLACES: Mapping[str, tuple[str, ...]] = {
    "onstartups": (
        "stackexchange/onstartups.Posts.xml.xz",
        "onstartups.Posts.xml.xz",
        "downloads/onstartups/posts.xml",
    ),
    "stackoverflow": (
        "stackoverflow.sqlite.lzma",
        "stackoverflow.sqlite",
        "downloads/stackoverflow/stackoverflow.sqlite.lzma",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Prepared corpus or raw file under a name, not opened yet.

    Attributes:
        name: The corpus' name.
        path: A prepared corpus or a raw file.
        prepared: Whether it is a prepared corpus.
        where: "cache" or "data folder".
    """

    name: str
    path: Path
    prepared: bool
    where: str


def resolve_corpus(
    argument: str | os.PathLike[str] | None,
    *,
    allow_synthetic: bool,
    progress: Progress | None = None,
) -> Corpus:
    """Return the corpus of an argument, importing it first if only its raw file is there.

    What counts, in this order: `argument`; the environment variable `FEDPRIV_DATA`; the cache
    (`FEDPRIV_CACHE`, or the platform's own place); a folder `../shared/data` next to the checkout
    or the working directory; and, if allowed, the synthetic StackOverflow.

    Args:
        argument: A prepared corpus, a folder with one or with raw files, a `Posts.xml` or TFF
            `.sqlite` file (packed or not), or a name of `NAMES`; None to look around.
        allow_synthetic: Whether to make a synthetic corpus when nothing real is found. Asking for
            it by name is always allowed.
        progress: Called with (done, total) while something is unpacked, imported or made.

    Raises:
        ValueError: If there is nothing, or what there is is truncated, damaged or no corpus; then
            nothing half-made is left anywhere.
    """
    wish = argument if argument is not None else os.environ.get("FEDPRIV_DATA") or None
    if wish is not None:
        asked = "the argument" if argument is not None else "FEDPRIV_DATA"
        return _resolve_wish(str(wish), asked, progress)
    for name in ("onstartups", "stackoverflow"):
        if (corpus := _by_name(name, progress)) is not None:
            return corpus
    if allow_synthetic:
        return cached_synthetic(progress=progress)
    raise ValueError(
        "no corpus was found: name one (a prepared corpus, a Posts.xml or a TFF .sqlite file), set "
        "FEDPRIV_DATA, or get one with `fedpriv data fetch onstartups`"
    )


def find_candidates(name: str) -> Iterator[Candidate]:
    """Yield what there is under a name in the cache and the data folders, best first.

    What cannot be a name (a path, a pattern) finds nothing.
    """
    if not _NAME.fullmatch(name):
        return
    cache, places = cache_dir(), _PLACES.get(name, ())
    for raw in (cache / place for place in places):
        if raw.is_file():
            yield Candidate(name=name, path=raw, prepared=False, where="cache")
    for path in sorted((cache / "corpora").glob(f"{name}-{'[0-9a-f]' * 16}")):
        if (path / manifests.FILE_NAME).is_file():
            yield Candidate(name=name, path=path, prepared=True, where="cache")
    for raw in (folder / place for folder in data_folders() for place in places):
        if raw.is_file():
            yield Candidate(name=name, path=raw, prepared=False, where="data folder")


def _resolve_wish(wish: str, asked: str, progress: Progress | None) -> Corpus:
    path = Path(wish).expanduser()
    if path.exists():
        return _open(path, progress)
    if wish == SYNTHETIC:
        return cached_synthetic(progress=progress)
    if (corpus := _by_name(wish, progress)) is not None:
        return corpus
    why = f"there is no such file or folder, and no corpus of that name ({', '.join(NAMES)})"
    if wish in NAMES:
        why = f"the corpus is not here yet; get it with `fedpriv data fetch {wish}`"
    raise ValueError(f"{asked} names {wish!r}: {why}")


def _by_name(name: str, progress: Progress | None) -> Corpus | None:
    """Open the best of what there is under a name; None if there is nothing."""
    damage: ValueError | None = None
    for found in find_candidates(name):
        try:
            return _open(found.path, progress, name=name)
        except ValueError as error:
            # One of another version is made again where its raw file is further down the list.
            if not found.prepared:
                raise
            damage = error
    if damage is not None:
        raise damage
    return None


def _open(path: Path, progress: Progress | None, name: str | None = None) -> Corpus:
    """Open a prepared corpus, or import a raw file, or look for either in a folder."""
    if path.is_dir():
        if (path / manifests.FILE_NAME).is_file():
            return Corpus.open(path)
        for known, places in _PLACES.items():
            for place in places:
                if (path / place).is_file():
                    return _open(path / place, progress, name=known)
        raise ValueError(
            f"{path} is neither a prepared corpus (it has no {manifests.FILE_NAME}) nor a folder "
            f"with a known raw file such as {_PLACES['onstartups'][0]}"
        )
    if path.name == manifests.FILE_NAME:
        return Corpus.open(path.parent)
    if raw_kind(path) == "tff-stackoverflow":
        name = "stackoverflow"
        importer: Callable[..., Corpus] = partial(import_stackoverflow, path, name=name)
    else:
        name, about = stackexchange_name(path) if name is None else (name, _ABOUT.get(name, {}))
        importer = partial(import_stackexchange, path, name=name, **about)
    return cached(
        name,
        lambda target, tell: importer(target, progress=tell),
        source=path,
        options={},
        progress=progress,
    )


def stackexchange_name(path: Path) -> tuple[str, Mapping[str, str]]:
    """Return the corpus name of a dump, and its licence and credit where they are known."""
    onstartups = path.name.lower().startswith("onstartups.") or path.parent.name == "onstartups"
    name = "onstartups" if onstartups else site_name(path)
    return name, _ABOUT.get(name, {})


def are_defaults(options: Mapping[str, object]) -> bool:
    """Return whether import options are those of a corpus that is imported on first use."""
    known = [
        {name: parameter.default for name, parameter in inspect.signature(make).parameters.items()}
        for make in (import_stackexchange, import_stackoverflow)
    ]
    return any(all(name in d and d[name] == v for name, v in options.items()) for d in known)


def raw_kind(path: Path) -> str:
    """Return "tff-stackoverflow" or "stackexchange": which importer a raw file is for.

    The content decides where it can (an SQLite file), else the name; the importer checks the rest.

    Raises:
        ValueError: If there is no such file or its name says nothing.
    """
    if not path.is_file():
        raise ValueError(f"no file {path}")
    with path.open("rb") as file:
        if file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC:
            return "tff-stackoverflow"
    lower = path.name.lower()
    if ".sqlite" in lower or lower.endswith(".lzma"):
        return "tff-stackoverflow"
    if "xml" in lower.split(".") or lower.endswith(".7z"):
        return "stackexchange"
    raise ValueError(
        f"{path} is not a corpus this program knows: name a Stack Exchange Posts.xml (.gz, .bz2, "
        ".xz, .7z) or a TFF .sqlite (.lzma, .xz) file, or a prepared corpus"
    )


def cached(
    name: str,
    make: Callable[[Path, Progress | None], Corpus],
    *,
    source: Path | None,
    options: Mapping[str, object],
    progress: Progress | None = None,
) -> Corpus:
    """Return the cached corpus of a name, source file and options, making it if need be.

    Args:
        name: The corpus' name.
        make: Makes it in a folder that does not exist yet, and leaves nothing when it fails.
        source: The raw file it is made from, if any; its content is part of the key.
        options: What else it depends on; JSON values.
        progress: Passed on to `make`.
    """
    facts = {
        "version": manifests.VERSION,
        "options": dict(options),
        "sha256": None if source is None else remembered_sha256(source, cache_dir(), progress),
    }
    return open_or_make(
        "corpora",
        name,
        facts,
        read=Corpus.open,
        make=lambda target: make(target, progress),
    )


def cached_synthetic(
    *, seed: int = 0, shape: Shape | None = None, progress: Progress | None = None
) -> Corpus:
    """Return the cached synthetic corpus of a seed and shape, making it on first use.

    Args:
        seed: Of the generator.
        shape: None for `STAND_IN`.
        progress: Called with how much of it is made.
    """
    shape = STAND_IN if shape is None else shape
    # Only the default one answers to the plain name.
    name = SYNTHETIC if (seed, shape) == (0, STAND_IN) else f"{SYNTHETIC}-{seed}-{shape.num_users}"
    return cached(
        name,
        lambda target, tell: synthesize(target, seed=seed, shape=shape, progress=tell),
        source=None,
        options={"seed": seed, "generator": GENERATOR, "shape": asdict(shape)},
        progress=progress,
    )
