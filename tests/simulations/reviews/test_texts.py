"""IMDB, Amazon and SST-2: small made files, hostile ones, the real IMDB reviews."""

import gzip
import io
import json
import lzma
import tarfile
import zipfile

import numpy as np
import pytest

from simulations.reviews.bag_of_words import Texts, plain_words, word_rows
from simulations.reviews.features import load_amazon, load_imdb, read_amazon, read_imdb
from simulations.reviews.sst2 import load_sst2, read_tsv
from tests.harness.refusals import refuses


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    "text, words",
    [
        ("It's GREAT!<br /><br />'Really' 10/10", ["it's", "great", "really", "10", "10"]),
        ("<BR/>a<br>b<br   />c", ["a", "b", "c"]),
        ("''' ' rock'n'roll''", ["rock'n'roll"]),
        ("caf\u00e9 \u212aelvin", ["caf", "kelvin"]),
        ("", []),
    ],
)
def test_words(text, words):
    assert plain_words(text) == words


def rows_as_words(rows):
    return [
        [rows.words[number] for number in rows.ids[start:stop]]
        for start, stop in zip(rows.starts[:-1], rows.starts[1:], strict=True)
    ]


def texts(*items):
    return Texts(texts=items, labels=np.arange(len(items)))


def test_rows_hold_what_the_texts_say_over_one_table():
    told = []
    parts = [texts("a b a", "", "c"), texts("c d")]
    train, test = word_rows(parts, progress=lambda *at: told.append(at))
    assert told == [(4, 4)]
    assert train.words is test.words and train.words == ("a", "b", "c", "d")
    assert rows_as_words(train) == [["a", "b", "a"], [], ["c"]] and rows_as_words(test) == [
        ["c", "d"]
    ]
    taken = train.take(np.array([2, 0, 2]))
    assert rows_as_words(taken) == [["c"], ["a", "b", "a"], ["c"]]
    assert taken.labels.tolist() == [2, 0, 2]
    assert len(word_rows([texts()])[0]) == 0


REVIEWS = {  # as in the archive, by id
    "train": {"pos/0": "good <br />film", "neg/0": "bad film", "neg/10": "worse", "neg/2": "dull"},
    "test": {"pos/7": "fine", "neg/7": "\u00e9vil"},
}
RATINGS = {"pos": 9, "neg": 2}


def write_lines(folder, rows=None, part="train"):
    for name, reviews in REVIEWS.items():
        made = [
            {"id": review, "label": int(review.startswith("pos")), "text": text}
            for review, text in reviews.items()
        ]
        if name == part and rows is not None:
            made = rows
        lines = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in made)
        (folder / f"imdb_{name}.jsonl.xz").write_bytes(lzma.compress(lines.encode() + b"\n"))
    return folder


def write_archive(folder, extra=()):
    with tarfile.open(folder / "aclImdb_v1.tar.gz", "w:gz") as archive:
        members = {
            f"aclImdb/{part}/{review}_{RATINGS[review[:3]]}.txt": text.encode()
            for part, reviews in REVIEWS.items()
            for review, text in reviews.items()
        }
        members |= {"aclImdb/train/unsup/3_0.txt": b"no label", "aclImdb/README": b"read"}
        for name, content in {**members, **dict(extra)}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return folder


@pytest.mark.parametrize("write", [write_lines, write_archive])
def test_both_forms_of_imdb_are_the_same(tmp_path, write):
    train, test = read_imdb(write(tmp_path))
    assert train.texts == ("bad film", "worse", "dull", "good <br />film")
    assert train.labels.tolist() == [0, 0, 0, 1] and train.labels.dtype == np.int64
    assert test.texts == ("\u00e9vil", "fine") and test.labels.tolist() == [0, 1]


def test_imdb_is_tokenised_once(tmp_path, monkeypatch):
    write_lines(tmp_path)
    first = load_imdb(tmp_path)
    monkeypatch.setattr(
        "simulations.reviews.features._read_imdb", lambda *args: pytest.fail("read again")
    )
    again = load_imdb(tmp_path)
    assert again.name == "imdb" and not again.synthetic
    for got in (first, again):
        assert rows_as_words(got.train) == [["bad", "film"], ["worse"], ["dull"], ["good", "film"]]
        assert got.train.labels.tolist() == [0, 0, 0, 1] and got.test.labels.tolist() == [0, 1]
    assert set(first.provenance["source"]) == {"imdb_train.jsonl.xz", "imdb_test.jsonl.xz"}
    monkeypatch.undo()
    with refuses(ValueError, "fedpriv data fetch imdb"):
        load_imdb(tmp_path / "cache")


GOOD = {"id": "neg/1", "label": 0, "text": "x"}


@pytest.mark.parametrize(
    "rows, name",
    [
        ([GOOD, {**GOOD, "label": 2}], 2),
        ([{**GOOD, "label": True}], "True"),
        ([{**GOOD, "text": 5}], 1),
        ([{"id": "a", "text": "x"}], 1),
        (["[" * 100_000], 1),
        ([GOOD, '{"id": "neg/2", "lab'], 2),
        ([GOOD, {**GOOD, "label": 1}], "neg/1"),
        ([GOOD], ""),
    ],
)
def test_hostile_imdb_lines_are_refused(tmp_path, rows, name):
    with refuses(ValueError, name):
        read_imdb(write_lines(tmp_path, rows))


def test_hostile_imdb_files_are_refused_and_nothing_is_kept(tmp_path):
    write_lines(tmp_path)
    path = tmp_path / "imdb_test.jsonl.xz"
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    with refuses(ValueError, path):
        load_imdb(tmp_path)
    assert not list((tmp_path / "cache").rglob("*.npy"))
    path.write_bytes(lzma.compress(b'{"id": "\xff"}'))
    with refuses(ValueError, path):
        load_imdb(tmp_path)
    path.write_bytes(whole)
    assert len(load_imdb(tmp_path).test) == 2


def amazon(*rows):
    return b"".join(row if isinstance(row, bytes) else star(*row) + b"\n" for row in rows)


def star(stars, text="words", title="a title"):
    return ",".join(f'"{part}"' for part in (stars, title, text)).encode()


def archive(content, name="amazon_review_full_csv/train.csv"):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for member, held in (("amazon_review_full_csv/readme.txt", b"no rows"), (name, content)):
            entry = tarfile.TarInfo(member)
            entry.size = len(held)
            tar.addfile(entry, io.BytesIO(held))
    return gzip.compress(packed.getvalue(), mtime=0)


ARCHIVE = "amazon_review_full_csv.tar.gz"


@pytest.mark.parametrize("name", [ARCHIVE, "amazon_review_full_csv.tgz", "train.csv"])
def test_amazon_stars_become_labels(tmp_path, name):
    path = tmp_path / name
    content = amazon((5, "e"), (1, "a"), (3, "c"), (2, "b"), (4, "d"), (5, "  "))

    def write(content):
        path.write_bytes(content if name == "train.csv" else archive(content))

    write(content)
    got = read_amazon(path, per_label=2)
    assert got.texts == ("e", "a", "b", "d") and got.labels.tolist() == [1, 0, 0, 1]
    rows = load_amazon(tmp_path, per_label=1)
    assert rows_as_words(rows) == [["e"], ["a"]] and rows.labels.tolist() == [1, 0]
    with refuses(ValueError, 2, 3):
        load_amazon(path, per_label=3)
    write(amazon((5, "a"), (5, "b"), (1, "c"), b"no review any more"))
    assert read_amazon(path, per_label=1).texts == ("a", "c")


def test_amazon_quotes_and_line_breaks(tmp_path):
    path = tmp_path / "train.csv"
    path.write_bytes(amazon((5, 'so ""good"", really'), (1, r"first\nsecond")))
    assert read_amazon(path, per_label=1).texts == ('so "good", really', "first second")


@pytest.mark.parametrize(
    "content, name",
    [
        (archive(amazon((5,), (0,))), 2),
        (archive(b'"5","x"\n'), 1),
        (archive(b'"5","x","never closed\n'), 1),
        (archive(b'"5","x","\xff"\n'), 1),
        (archive(amazon(*[(5,)] * 3000))[:-40], ARCHIVE),
        (b"no archive", ARCHIVE),
        (archive(b"", "amazon_review_full_csv/test.csv"), ARCHIVE),
        (archive(amazon((5,))), 0),
    ],
    # Names of our own: packed bytes may hold a clock, and ids must be alike in every process.
    ids=[
        "zero stars",
        "no text",
        "an open quote",
        "no text of UTF-8",
        "cut off",
        "no archive",
        "no rows",
        "one label",
    ],
)
def test_hostile_amazon_files_are_refused(tmp_path, content, name):
    (tmp_path / ARCHIVE).write_bytes(content)
    with refuses(ValueError, name):
        read_amazon(tmp_path / ARCHIVE, per_label=1)


def test_absent_amazon_files_come_with_the_way_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPRIV_DATA", str(tmp_path))
    with pytest.raises(ValueError):
        load_amazon(tmp_path / "nowhere")
    (tmp_path / "amazon").mkdir()
    (tmp_path / "amazon" / ARCHIVE).write_bytes(archive(amazon((5,), (1,))))
    assert len(load_amazon(per_label=1)) == 2


TSV = {
    "train.tsv": b'sentence\tlabel\nhide "new secretions \t0\ncontains no wit\t0\nthat loves\t1\n',
    "dev.tsv": b"sentence\tlabel\r\ncharming\t1\r\n",
}


@pytest.mark.parametrize("form", ["files", "folder", "zip"])
def test_sst2(tmp_path, form):
    folder = tmp_path / "SST-2" if form == "folder" else tmp_path
    folder.mkdir(exist_ok=True)
    if form == "zip":
        with zipfile.ZipFile(tmp_path / "SST-2.zip", "w") as archive:
            for name, content in TSV.items():
                archive.writestr(f"SST-2/{name}", content)
    else:
        for name, content in TSV.items():
            (folder / name).write_bytes(content)
    data = load_sst2(tmp_path)
    assert data.train.texts == ('hide "new secretions', "contains no wit", "that loves")
    assert data.train.labels.tolist() == [0, 0, 1]
    assert data.test.texts == ("charming",) and data.test.labels.tolist() == [1]


@pytest.mark.parametrize(
    "content, name",
    [
        (b"", "x.tsv"),
        (b"sentence\tlabel\n", "x.tsv"),
        (b"sentence\tlabel\nfine\t1\nfi", 3),
        (b"sentence\tlabel\nfine\t2\n", 2),
        (b"sentence\tlabel\n\xff\t1\n", "x.tsv"),
    ],
)
def test_hostile_sentences_are_refused(content, name):
    with refuses(ValueError, name):
        read_tsv(content, "x.tsv")


def test_hostile_sst2_archives_are_refused(tmp_path):
    path = tmp_path / "SST-2.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("SST-2/train.tsv", TSV["train.tsv"])
    with refuses(ValueError, path):
        load_sst2(tmp_path)
    path.write_bytes(path.read_bytes()[:-30])
    with refuses(ValueError, path):
        load_sst2(path)


@pytest.mark.slow
def test_imdb_itself(imdb):
    for part in (imdb.train, imdb.test):
        assert np.bincount(part.labels).tolist() == [12_500, 12_500]
        assert (np.diff(part.labels) >= 0).all()  # sorted by id, bad ones first
    first = [rows_as_words(part.take(np.array([0])))[0] for part in (imdb.train, imdb.test)]
    assert [" ".join(words[:4]) for words in first] == ["story of a man", "once again mr costner"]
    lengths = np.diff(imdb.train.starts)
    assert lengths.min() > 5 and 225 < lengths.mean() < 240
