"""Embeddings of a corpus by a pretrained encoder: one row for each sentence and each title.

Kept in the cache for each corpus and encoder, and shared by all rosters, splits and folds:

    sentences.npy  float32 (S, d)  of every sentence, its words apart by spaces
    titles.npy     float32 (T, d)  of every thread's title; not there where titles are not kept

A part of a corpus has its own, made of the text that it holds.

A sentence's text is what the corpus keeps: lower case, without the characters outside ASCII. A stop
leaves the rows that were made in `sentences.npy.part`, and the next command goes on with them if
the libraries have the same versions. These are stored with the rows, in `sentences.json` and
`titles.json`: a run says them.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedpriv.checkpoints.vocabulary import EncoderInputs
from fedpriv.datasets.cache import cache_dir, locked
from fedpriv.datasets.encoders import (
    CHUNK,
    Encoder,
    EncoderFiles,
    add_reduced,
    encoded,
    library_versions,
)
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.sentence_store import TEXTS, Text
from fedpriv.datasets.stackexchange.tag_view import TagExamples
from fedpriv.hashes import Progress, document_sha256
from fedpriv.libraries import one_thread
from fedpriv.output_paths import write_private


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embeddings:
    """Rows of a corpus's texts, mapped from files.

    Attributes:
        encoder: The encoder's id.
        sha256: Digest of its files.
        rows: Of each kind of text, float32: "sentence" `(S, d)` by row of the store, "title"
            `(T, d)` by thread.
        made_by: The libraries and their versions; "" where no library made them.
    """

    encoder: str
    sha256: str
    rows: Mapping[str, np.ndarray] = field(repr=False)
    made_by: str = ""

    @property
    def width(self) -> int:
        """Numbers of a row, d."""
        return next(iter(self.rows.values())).shape[1]


def open_embeddings(corpus: Corpus, encoder: Encoder, texts: Sequence[str]) -> Embeddings:
    """Return embeddings of a corpus that `make_embeddings` made.

    Raises:
        ValueError: If a row is missing.
    """
    folder = _folder(corpus, encoder)
    for kind in texts:
        if not (folder / f"{kind}s.npy").is_file():
            raise ValueError(
                f"the {kind}s of corpus {corpus.name!r} are not all embedded by "
                f"{encoder.files.id}: run `fedpriv encoder embed {encoder.files.id}` with the same "
                "--corpus first; it says how far it is, and goes on after a stop"
            )
    return _opened(folder, encoder, texts)


def _opened(folder: Path, encoder: Encoder, texts: Sequence[str]) -> Embeddings:
    return Embeddings(
        encoder=encoder.files.id,
        sha256=encoder.files.sha256,
        rows={kind: _mapped(folder / f"{kind}s.npy") for kind in texts},
        made_by=" and ".join(dict.fromkeys(_made_by(folder / f"{kind}s.json") for kind in texts)),
    )


def make_embeddings(
    corpus: Corpus,
    encoder: Encoder,
    texts: Sequence[Text] = TEXTS,
    *,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Embeddings:
    """Return the embeddings of a corpus, made on first use.

    Args:
        corpus: A prepared corpus.
        encoder: Makes the rows.
        texts: Which of `TEXTS`.
        processes: As of `fedpriv.datasets.encoders.encode_texts`.
        progress: Called with (texts done, texts), for one kind after the other.

    Raises:
        ValueError: As `Encoder.encode`; other texts than `TEXTS`; titles that the corpus does not
            keep; a cache that cannot be written to.
    """
    if not texts or set(texts) - set(TEXTS):
        raise ValueError(f"encoder texts {tuple(texts)!r}: give one or both of {TEXTS}")
    folder = _folder(corpus, encoder)
    for kind in texts:
        found = corpus.texts(kind)
        if found is None:
            raise ValueError(
                f"corpus {corpus.name!r} keeps no {kind}s; set task.encoder-texts to sentence"
            )
        with locked(f"{folder.name}-{kind}", cache_dir()):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make(folder, f"{kind}s", found, encoder, processes, progress)
    return _opened(folder, encoder, texts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedTexts:
    """Inputs of an example: the rows of its texts, side by side, scaled to unit norm.

    Each is a function of that text alone. A thread's title is its asker's: an answer's example has
    it too, as it has the words of it, so a guarantee of users' own examples does not cover a
    person's title in others' examples (`owners all` drops them).

    Attributes:
        embeddings: Of the corpus, and of all texts that an example has.
    """

    embeddings: Embeddings

    @property
    def num_rows(self) -> int:
        """Number of inputs of a model."""
        return self.embeddings.width * len(self.embeddings.rows)

    @property
    def description(self) -> EncoderInputs:
        """Description of the inputs, as a model's file has it."""
        of = self.embeddings
        return EncoderInputs(id=of.encoder, sha256=of.sha256, texts=tuple(of.rows), width=of.width)

    def dense(self, examples: TagExamples, chosen: np.ndarray | None = None) -> np.ndarray:
        """Return inputs scaled to unit norm, float32 `(n, num_rows)`.

        Args:
            examples: Of which only those chosen are read.
            chosen: int64 `(n,)`; None for all.

        Raises:
            ValueError: As of `distinct`.
        """
        rows, places = self.distinct(
            examples, np.arange(len(examples)) if chosen is None else chosen
        )
        return rows[places]

    def distinct(self, examples: TagExamples, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the distinct inputs of some examples, in the order of their first, and places.

        Args:
            examples: Of which only those chosen are read.
            chosen: int64 `(n,)`.

        Returns:
            float32 `(m, num_rows)` of unit norm, and int64 `(n,)`, each example's row of them.

        Raises:
            ValueError: If a part of a corpus keeps no text of these examples.
        """
        assert examples.texts is not None
        texts = examples.texts[chosen]
        if texts.min(initial=0) < 0:
            raise ValueError(
                "this part of a corpus has no text of these examples: a node's has that of its own "
                "users, and the server's that of public ones"
            )
        # A sentence is of one thread, so it tells examples apart where both are encoded. Rows are
        # in the examples' order, whatever their numbers are, so that a part has the same sums.
        kinds = self.embeddings.rows
        finest = TEXTS.index("sentence" if "sentence" in kinds else "title")
        numbers = texts[:, finest].tolist()
        rank = {number: place for place, number in enumerate(dict.fromkeys(numbers))}
        place = np.array([rank[number] for number in numbers], np.int64)
        texts = texts[np.unique(place, return_index=True)[1]]
        found = [table[texts[:, TEXTS.index(kind)]] for kind, table in kinds.items()]
        rows = found[0] if len(found) == 1 else np.concatenate(found, axis=1)
        return unit_rows(rows), place

    def inputs(self, examples: TagExamples) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return row starts, rows and values, as of `tag_view.Features`."""
        rows = self.dense(examples)
        number, width = rows.shape
        places = np.tile(np.arange(width, dtype=np.int32), number)
        return np.arange(number + 1) * width, places, rows.reshape(-1)


def reduce_encoder(
    corpus: Corpus,
    encoder: Encoder,
    dimensions: int,
    *,
    roster: str | None = None,
    name: str | None = None,
    progress: Progress | None = None,
) -> EncoderFiles:
    """Add an encoder whose rows are the first principal components of another's.

    These are eigenvectors of the second moments, not centred, of the rows, scaled to unit norm, of
    titles that public users gave to threads that they asked and wrote in, whatever part of a split
    these are for. So the encoder's files are a function of the other's and of public users' text
    alone, and the same on one machine each time: what rostered users wrote, and whether they did,
    changes no byte of them.

    Args:
        corpus: With its titles embedded by the encoder.
        encoder: The other one.
        dimensions: How many components, k.
        roster: Whose public users; None for the corpus's default.
        name: Of the new encoder; None for the other's with k behind it.
        progress: Called with (sentences done, sentences) while the roster's view is made.

    Raises:
        ValueError: If the corpus keeps no titles or they are not embedded, or k is not between 1
            and the smaller of the rows' width and the number of titles.
    """
    titles = corpus.texts("title")
    if titles is None:
        raise ValueError(
            f"corpus {corpus.name!r} keeps no titles, of whose rows components are made; import it "
            "without --own-text-only"
        )
    encoded = EncodedTexts(embeddings=open_embeddings(corpus, encoder, ("title",)))
    view = corpus.view(roster, progress=progress)
    public = view.public_rows("all")
    rows, _ = encoded.distinct(view.columns, public)
    if not 1 <= dimensions <= min(rows.shape):
        raise ValueError(
            f"dimensions {dimensions}: rows of {encoder.files.id} have {encoded.num_rows} numbers "
            f"and public users gave {len(rows)} titles; give 1 to the smaller of the two"
        )
    import torch

    with one_thread():
        wide = torch.from_numpy(rows).double()
        found = torch.linalg.eigh(wide.T @ wide).eigenvectors.T.flip(0)[:dimensions].numpy()
    # An eigenvector's sign is the library's whim.
    largest = np.take_along_axis(found, np.abs(found).argmax(axis=1)[:, None], axis=1)
    own = np.unique(np.asarray(view.columns.texts)[public, TEXTS.index("title")])
    made_from = {
        "encoder": encoder.files.id,
        "corpus": corpus.name,
        "roster": view.roster_name,
        "roster_sha256": view.roster_sha256,
        # No digest of the corpus, which is of rostered users' text.
        "titles": len(rows),
        "titles_sha256": document_sha256(sorted(str(titles[int(n)]) for n in own)),
    }
    return add_reduced(encoder, (found * np.sign(largest)).astype(np.float32), made_from, name)


# Below this length squares lose digits in float32.
_SMALL = np.float32(1e-16)


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Return rows scaled to unit norm, float32 `(n, d)`; a row of zeros stays one."""
    norms = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    odd = (norms < _SMALL) | (norms == np.inf)  # squares beyond float32
    if odd.any():
        wide = rows[odd].astype(np.float64)
        lengths = np.sqrt(np.einsum("nd,nd->n", wide, wide))
        rows, norms = rows.copy(), np.where(odd, np.float32(1.0), norms)
        rows[odd] = wide / np.where(lengths == 0.0, 1.0, lengths)[:, None]
    return rows / norms[:, None]


def _folder(corpus: Corpus, encoder: Encoder) -> Path:
    facts = {"corpus": corpus.content_sha256, "encoder": encoder.files.sha256, "version": 2}
    name = f"{encoder.files.id}-{document_sha256(facts)[:16]}"
    return cache_dir() / "embeddings" / name


def _make(
    folder: Path,
    kind: str,
    texts: Sequence[str],
    encoder: Encoder,
    processes: int | None,
    progress: Progress | None,
) -> None:
    """Make the rows of one kind of text that are missing."""
    path, about, versions = folder / f"{kind}.npy", folder / f"{kind}.json", library_versions()
    if path.is_file():
        return
    part, shape = path.with_name(f"{path.name}.part"), (len(texts), encoder.width)
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": "<f4", "fortran_order": False, "shape": shape}
    )
    header, row_bytes = buffer.getvalue(), 4 * encoder.width
    if _made_by(about) != _list_versions(versions):
        part.unlink(missing_ok=True)
        write_private(about, json.dumps(versions))
    with part.open("ab") as file:
        # The last chunk is made again: a power cut may have left its length without its bytes.
        done = max(0, (file.tell() - len(header)) // row_bytes // CHUNK - 1) * CHUNK
        file.truncate(len(header) + row_bytes * done if done else 0)
        if not done:
            file.write(header)
        for rows in encoded(encoder, texts, done, processes=processes):
            file.write(rows.astype("<f4").tobytes())
            file.flush()
            os.fsync(file.fileno())
            done += len(rows)
            if progress is not None:
                progress(done, len(texts))
    part.replace(path)


def _made_by(about: Path) -> str:
    """Return the libraries that rows were made by, as the file stored with them says."""
    try:
        return _list_versions(json.loads(about.read_text("utf-8")))
    except (OSError, ValueError, AttributeError):
        return "unknown versions"


def _list_versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {versions[name]}" for name in sorted(versions))


def _mapped(path: Path) -> np.ndarray:
    try:
        return np.asarray(np.load(path, mmap_mode="r")).view(np.ndarray)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(
            f"{path} is damaged ({error}); remove it, and run `fedpriv encoder embed` again"
        ) from error
