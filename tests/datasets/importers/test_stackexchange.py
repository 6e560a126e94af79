"""Dumps of Stack Exchange: posts become a corpus; damaged, hostile and crafted ones are refused."""

import bz2
import gzip
import lzma
import os
import stat
from xml.sax.saxutils import quoteattr

import py7zr
import pytest

from fedpriv.datasets.importers import dump as importer
from fedpriv.datasets.importers.dump import Dump, import_stackexchange, open_dump
from fedpriv.datasets.stackexchange.splits import BY_SENTENCE
from tests.harness.refusals import refuses

PUBLIC, INSIDE = "15", "1"  # by the fixed hash of the id


def row(**attributes):
    written = " ".join(f"{name}={quoteattr(str(value))}" for name, value in attributes.items())
    return f"  <row {written} />\n"


def question(number, owner, title="A title", body="<p>Hello there.</p>", tags="<law>", **more):
    owned = {} if owner is None else {"OwnerUserId": owner}
    return row(Id=number, PostTypeId=1, Title=title, Tags=tags, Body=body, **owned, **more)


def answer(number, parent, owner, body="<p>Well. It depends!</p>", **more):
    owned = {} if owner is None else {"OwnerUserId": owner}
    return row(Id=number, PostTypeId=2, ParentId=parent, Body=body, **owned, **more)


def document(*rows):
    return f'<?xml version="1.0" encoding="utf-8"?>\n<posts>\n{"".join(rows)}</posts>\n'


ROWS = (
    answer(3, 1, INSIDE),  # before its question
    question(1, PUBLIC, title="How to sue", tags="<law><money>"),
    question(2, INSIDE, title="My own", body="<p>Is it legal? See http://x.org/a.</p>"),
    answer(4, 2, PUBLIC),
    answer(5, 2, None),
    question(6, None, title="Nobody's title", tags="<money>"),
    answer(7, 6, INSIDE),
    row(Id=8, PostTypeId=5, OwnerUserId=INSIDE, Body="a tag wiki"),
    answer(9, 99, INSIDE, body="<p>Lost.</p>"),
    answer(10, 2, -1),
    answer(11, 2, INSIDE, body="<p></p>"),
)


def imported(tmp_path, *rows, name="Posts.xml", **options):
    path = tmp_path / name
    path.write_text(document(*(rows or ROWS)), encoding="utf-8")
    return import_stackexchange(path, tmp_path / "corpus", name="site", **options)


def test_posts_become_examples_with_their_question_s_title_and_tags(tmp_path):
    corpus = imported(tmp_path)
    view = corpus.view(split=BY_SENTENCE)
    assert corpus.default_roster == view.roster_name == "site-all"
    assert (view.roster, view.public_users) == ((INSIDE,), (PUBLIC,))
    # Two answers of two sentences and a question of two, of which each has a title.
    inside = view.examples(INSIDE, "all")
    assert sorted(inside.num_tokens.tolist()) == sorted([2 + 3, 3 + 3, 2 + 4, 3 + 4, 4 + 2, 3 + 2])
    assert view.tags == ("law", "money")
    # Public words are of their own text: not of the title of a question that they answered.
    assert {"hello", "sue", "depends"} <= set(view.words) and "my" not in view.words
    labels = sorted(view.tags[label] for label in inside.labels)
    assert labels == ["law"] * 4 + ["money"] * 2
    # Two answers of two sentences carry a title that is another user's.
    assert view.provenance["foreign_text_share"] == pytest.approx(4 / 6)
    assert view.provenance["foreign_text_share_by_rostered_users"] == 0


def test_what_is_dropped_is_counted(tmp_path):
    corpus = imported(tmp_path)
    assert corpus.manifest["dropped"] == {
        "posts owned by the site's own account": 1,
        "posts that are neither question nor answer": 1,
        "posts without OwnerUserId": 2,
        "posts without a sentence": 1,
    }
    assert corpus.manifest["source"]["posts"] == len(ROWS)
    assert corpus.manifest["source"]["questions"] == 3
    # The answer whose question is missing has no label.
    assert corpus.view(split=BY_SENTENCE).provenance["sentences_without_label"] == {
        "rostered": 1,
        "public": 0,
    }


ILLEGAL = [f"&#{code};" for code in ("x0E", 14, "x0", "xD800", "xFFFE", "x110000", 99999999999)]


@pytest.mark.parametrize("illegal", [*ILLEGAL, "\x0b"])
def test_a_character_that_xml_does_not_allow_costs_no_more_than_itself(
    tmp_path, monkeypatch, illegal
):
    """Wherever a piece of the file ends: all posts are there, without that character alone."""
    clean, odd = tmp_path / "clean", tmp_path / "odd"
    clean.write_text(document(*ROWS).replace("legal?", "legal&#x41;\ud7ff\ufffd?"), "utf-8")
    odd.write_text(
        clean.read_text("utf-8")
        .replace("How to sue", f"How{illegal} to sue")
        .replace("legal", f"{illegal}le{illegal}gal"),
        "utf-8",
    )
    wanted = [*Dump(clean, clean).rows()]
    for chunk in (1, 2, 7, 64, 1 << 18):
        monkeypatch.setattr(importer, "_CHUNK", chunk)
        dump = Dump(odd, odd)
        assert [*dump.rows()] == wanted and dump.num_illegal == 3
    assert len(wanted) == len(ROWS)


def test_a_character_that_xml_does_not_allow_is_counted(tmp_path):
    rows = [line.replace("How", "How&#x0E;") for line in ROWS]
    dropped = imported(tmp_path, *rows).manifest["dropped"]
    assert [number for why, number in dropped.items() if "XML" in why] == [1]


def test_the_order_of_rows_changes_no_byte_of_a_corpus(tmp_path):
    """So the split by sentence, which is of a sentence's place among its user's, is the same."""
    rows = [
        *ROWS,
        *(answer(n, 2, INSIDE, body=f"<p>Word{n}. More!</p>") for n in (12, 100, 20, 3000)),
    ]
    made = []
    for name, order in {"a": rows, "b": rows[::-1], "c": [*rows[5:], *rows[:5]]}.items():
        (tmp_path / name).mkdir()
        corpus = imported(tmp_path / name, *order)
        corpus.view(split=BY_SENTENCE)
        files = {
            path.relative_to(corpus.directory): path.read_bytes()
            for path in corpus.directory.rglob("*")
            if path.is_file() and path.name != "manifest.json"
        }
        made.append(files)
    assert made[0] == made[1] == made[2] and len(made[0]) > 10


NEW_DIALECT = (
    row(Score=3, Tags="|law|money|", CreationDate="2024-01-01T00:00:00.000", ViewCount=7,
        Title="How to sue", LastActivityDate="2024-01-02", OwnerUserId=PUBLIC, Body="<p>Hello "
        "there.</p>", ContentLicense="CC BY-SA 4.0", PostTypeId=1, Id=1),
    answer(3, 1, INSIDE, ContentLicense="CC BY-SA 3.0", OwnerDisplayName="someone"),
)  # fmt: skip


def test_both_dialects_give_the_same_examples(tmp_path, multi_hot):
    old = imported(tmp_path, ROWS[0], ROWS[1])
    (tmp_path / "new").mkdir()
    new = imported(tmp_path / "new", *NEW_DIALECT)
    assert new.view(split=BY_SENTENCE).words == old.view(split=BY_SENTENCE).words
    assert new.view(split=BY_SENTENCE).tags == old.view(split=BY_SENTENCE).tags == ("law", "money")
    assert (
        multi_hot(new.view(split=BY_SENTENCE).examples(INSIDE, "all")).tolist()
        == multi_hot(old.view(split=BY_SENTENCE).examples(INSIDE, "all")).tolist()
    )
    assert new.manifest["licence"] == "CC BY-SA 3.0, CC BY-SA 4.0"
    assert "assumed" in old.manifest["licence"]


def compress(path, kind):
    content = path.read_bytes()
    packed = path.with_name(f"{path.name}.{kind}")
    if kind == "7z":
        with py7zr.SevenZipFile(packed, "w") as archive:
            archive.writestr(content, "site/Posts.xml")
            archive.writestr(b"<users/>", "site/Users.xml")
    else:
        packed.write_bytes({"gz": gzip, "bz2": bz2, "xz": lzma}[kind].compress(content))
    return packed


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "7z"])
def test_compressed_dumps_give_the_same_corpus(tmp_path, kind):
    plain = imported(tmp_path)
    # The kind is told by the content, and not by the name.
    packed = compress(tmp_path / "Posts.xml", kind).rename(tmp_path / "dump")
    corpus = import_stackexchange(packed, tmp_path / "packed", name="site")
    assert corpus.manifest["files"] == plain.manifest["files"]


def refused(tmp_path, path, *names):
    before = {*tmp_path.iterdir()}
    with refuses(ValueError, *names):
        import_stackexchange(path, tmp_path / "corpus", name="site")
    assert {*tmp_path.iterdir()} - {tmp_path / "cache"} == before


@pytest.mark.parametrize("kind", ["xml", "gz", "bz2", "xz", "7z"])
@pytest.mark.parametrize("harm", [0.3, 0.9, "flipped"])
def test_a_damaged_dump_is_refused_and_leaves_nothing(tmp_path, kind, harm):
    path = tmp_path / "Posts.xml"
    rows = (answer(n, 1, INSIDE, os.urandom(50).hex()) for n in range(100, 200))
    path.write_text(document(*ROWS, *rows))
    if kind != "xml":
        path = compress(path, kind)
    content = bytearray(path.read_bytes())
    if harm == "flipped":
        content[len(content) // 2] ^= 0xFF
    else:
        content = content[: int(harm * len(content))]
    path.write_bytes(content)
    refused(tmp_path, path, path.name)


ENTITY = (
    '<!DOCTYPE posts [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><posts><row Id="&b;"/></posts>'
)
OUTSIDE = '<!DOCTYPE posts SYSTEM "file:///etc/hostname"><posts/>'


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("", ["Posts.xml"]),
        ("id,text\n1,hello\n", [1]),
        ("<users><row Id='1'/></users>", ["<users>"]),
        ("<posts></posts>", ["Posts.xml"]),
        (document(row(Id=1, PostTypeId=5, OwnerUserId=3, Body="wiki")), ["Posts.xml"]),
        (document(question(1, None)), []),
        (document(question(1, PUBLIC), question(1, INSIDE)), ["Id"]),
        (document(row(PostTypeId=1, OwnerUserId=1, Title="t", Body="b")), ["Id"]),
        (ENTITY, ["Posts.xml"]),
        (OUTSIDE, ["Posts.xml"]),
        (document(question(1, INSIDE)), [0]),
    ],
)
def test_wrong_files_are_refused_and_leave_nothing(tmp_path, content, names):
    path = tmp_path / "Posts.xml"
    path.write_text(content)
    refused(tmp_path, path, *names)


def test_absent_files_and_archives_without_posts_are_refused(tmp_path):
    refused(tmp_path, tmp_path / "absent.xml", tmp_path / "absent.xml")
    refused(tmp_path, tmp_path, tmp_path)
    path = tmp_path / "site.7z"
    with py7zr.SevenZipFile(path, "w") as archive:
        archive.writestr(b"<users/>", "Users.xml")
    refused(tmp_path, path, 0, "Posts.xml")


@pytest.fixture(scope="module")
def onstartups(shared_data, tmp_path_factory):
    dump = shared_data / "stackexchange" / "onstartups.Posts.xml.xz"
    return import_stackexchange(dump, tmp_path_factory.mktemp("import") / "corpus")


@pytest.mark.data
@pytest.mark.slow
def test_onstartups_has_its_known_figures(onstartups):
    source, dropped = onstartups.manifest["source"], onstartups.manifest["dropped"]
    assert (source["posts"], source["accounts"], source["tags"]) == (39_792, 7_466, 607)
    assert dropped["posts without OwnerUserId"] == 2_671
    assert onstartups.name == "onstartups"
    assert onstartups.default_roster == "onstartups-all"
    view = onstartups.view("onstartups-400", split=BY_SENTENCE)
    examples = sorted(view.num_examples(user, "all") for user in view.roster)
    assert (len(view.roster), len(view.public_users)) == (400, 7_066)
    assert sum(examples) == pytest.approx(198_000, rel=0.005)
    assert examples[0] == pytest.approx(122, abs=2)
    assert examples[-1] == pytest.approx(7_266, rel=0.01)
    assert examples[200] == pytest.approx(235, abs=3)
    assert view.num_public_examples == pytest.approx(124_147, rel=0.005)
    assert view.provenance["foreign_text_share"] == pytest.approx(0.906, abs=0.001)
    shared = view.provenance["foreign_text_share_by_rostered_users"]
    assert shared == pytest.approx(0.221, abs=0.001)
    test = view.columns.take(view.all_rows(view.roster, "test"))
    assert max(map(test.labels.tolist().count, range(3))) / len(test) == pytest.approx(
        0.12, abs=0.005
    )
    assert test.indptr[-1] / len(test) == pytest.approx(24.5, abs=1)
    assert (len(view.words), len(view.tags)) == (10_000, 500)
    everybody = onstartups.view(split=BY_SENTENCE)
    assert len(everybody.roster) == pytest.approx(6_713, abs=60)
    assert len(everybody.roster) + len(everybody.public_users) == 7_466


@pytest.mark.slow
@pytest.mark.parametrize("where", ["attribute", "text", "comment", "name"])
@pytest.mark.parametrize("kind", ["xml", "gz"])
def test_a_row_longer_than_any_post_is_refused_before_it_is_held(tmp_path, where, kind):
    path, long = tmp_path / "Posts.xml", "a" * 12_000_000
    rows = {
        "attribute": f'<row Id="2" Body="{long}"/>',
        "text": long,
        "comment": f"<!--{long}-->",
        "name": f'<row {long}="1"/>',
    }
    path.write_text(f"<posts>\n{question(1, PUBLIC)}{rows[where]}\n</posts>")
    if kind == "gz":  # few bytes that unpack to many
        path.with_suffix(".gz").write_bytes(gzip.compress(path.read_bytes(), 1))
        path = path.with_suffix(".gz")
    fed = []
    dump = open_dump(path, tmp_path)
    with refuses(ValueError, "row 2", "4,194,304"), dump as d:
        list(d.rows(lambda done, total: fed.append(done)))
    assert len(fed) <= 18  # pieces of a quarter of a megabyte


def test_a_post_of_a_megabyte_is_read(tmp_path):
    path = tmp_path / "Posts.xml"
    path.write_text(document(question(1, PUBLIC, body="a" * 1_000_000), question(2, PUBLIC)))
    with open_dump(path, tmp_path) as dump:
        assert [len(row["Body"]) for row in dump.rows()] == [1_000_000, 19]


PACKED, ELSEWHERE = b"<posts><row Id='in'/></posts>", "<posts><row Id='secret'/></posts>"


def unix(kind):
    """Return a member's attributes that say so of it."""
    return 0x8000 | (kind | 0o777) << 16


def crafted(path, name, attributes=None, content=PACKED):
    """Write an archive whose one member has a name that py7zr itself would not write."""
    with py7zr.SevenZipFile(path, "w") as archive:
        archive.writestr(content, "a/Posts.xml")
        member = archive.header.files_info.files[-1]
        member["filename"] = name
        if attributes is not None:
            member["attributes"] = attributes
    return path


@pytest.fixture
def scratch(tmp_path):
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


@pytest.fixture
def victim(tmp_path):
    """A file of somebody else's, readable and removable."""
    (tmp_path / "home").mkdir()
    file = tmp_path / "home" / "Posts.xml"
    file.write_text(ELSEWHERE)
    return file


def refused_archive(path, scratch, *names):
    """A crafted archive reads, writes and removes nothing but what is in it."""
    with refuses(ValueError, path, *names), open_dump(path, scratch):
        pass
    assert not any(place.is_file() or place.is_symlink() for place in scratch.rglob("*"))


UPWARDS = ["../home/Posts.xml", "a/../../home/Posts.xml", "C:\\x\\Posts.xml", "..\\Posts.xml"]
DEVICES = [stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK]


@pytest.mark.parametrize(
    ("name", "kind", "content"),
    [
        *((name, None, PACKED) for name in ("{victim}", *UPWARDS)),
        *(("a/Posts.xml", kind, PACKED) for kind in DEVICES),
        *(("Posts.xml", stat.S_IFLNK, to) for to in (b"notes.txt", b"../home/Posts.xml")),
    ],
)
def test_what_leads_out_of_the_archive_is_refused(tmp_path, scratch, victim, name, kind, content):
    """A member elsewhere, a device and a link."""
    name = name.format(victim=victim)
    attributes = None if kind is None else unix(kind)
    refused_archive(
        crafted(tmp_path / "a.7z", name, attributes, content),
        scratch,
        repr(name.replace("\\", "/")),
    )
    assert victim.read_text() == ELSEWHERE


def test_two_members_of_the_same_name_are_two(tmp_path, scratch):
    path = tmp_path / "a.7z"
    with py7zr.SevenZipFile(path, "w") as archive:
        archive.writestr(PACKED, "Posts.xml")
        archive.writestr(PACKED, "Posts.xml")
    refused_archive(path, scratch, 2, "Posts.xml")


def test_an_ordinary_member_is_read_whatever_its_mode(tmp_path, scratch):
    path = crafted(tmp_path / "a.7z", "site/posts.XML", 0x8000 | stat.S_IFREG << 16)
    with open_dump(path, scratch) as dump:
        assert [row["Id"] for row in dump.rows()] == ["in"]
    assert not any(place.is_file() for place in scratch.rglob("*"))
