"""`fedpriv data`, as a person and as a program would use it."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedpriv.cli import data as commands
from fedpriv.datasets.importers import downloads, locate
from fedpriv.datasets.importers.synthetic import Shape
from fedpriv.datasets.local_data import NodeData, Table, local_users
from fedpriv.datasets.user_ids import write_key
from fedpriv.tasks.checks import find_cautions
from tests.datasets.importers.test_stackexchange import document, question
from tests.harness.command_line import fedpriv

pytestmark = pytest.mark.usefixtures("no_data")


def run(*arguments, fails=""):
    """Run a command; return its JSON, its text, or check the message it fails with."""
    result = fedpriv("data", *arguments)
    if fails:
        assert result.exit_code == 2 and fails in result.stderr, result
        return None
    assert result.exit_code == 0, result
    return json.loads(result.stdout) if "--json" in arguments else result.stdout


@pytest.fixture
def posts(tff_writer):
    """Three posts of a user of Stack Overflow, as TFF has them."""
    return [tff_writer.stackoverflow_example(f"a b c{n}", "title", f"t{n}") for n in range(3)]


@pytest.fixture
def tff_file(tmp_path, tff_writer, posts):
    return tff_writer.write(tmp_path / "so.sqlite.lzma", {f"{n:02}": posts for n in range(30)})


@pytest.fixture
def dump(tmp_path):
    """Questions of a sentence each."""
    path = tmp_path / "cooking.Posts.xml"
    body = "<p>I want word{} now.</p>"
    numbers = range(1, 60)
    rows = [question(n, n, f"Title {n % 5}", body.format(n % 7), f"<tag{n % 3}>") for n in numbers]
    path.write_text(document(*rows))
    return path


SMALL = ("--users", "6", "--sentences", "90", "--public-users", "3")


@pytest.mark.slow
def test_synthesize_info_and_split(tmp_path):
    out = tmp_path / "made"
    made = run("synthesize", *SMALL, "--out", out, "--json")
    assert made["synthetic"] is True
    assert made["path"] == str(out)
    assert made["rosters"]["synthetic-6"]["num_users"] == 6
    text = run("info", out, "--verify")
    assert "SYNTHETIC" in text
    assert "synthetic-6 (default)" in text
    new = run("split", out, "--name", "three", "--rule", "seeded", "--users", "3", "--json")
    assert (new["num_users"], new["num_public_users"], new["seed"]) == (3, 6, 0)
    ids = tmp_path / "ids"
    ids.write_text("u00001\n\nu00000\n")
    listed = run("split", out, "--name", "two", "--rule", "declared", "--ids", ids, "--json")
    assert listed["num_users"] == 2
    assert "three" in run("split", out, "--name", "rest", "--rule", "first-sorted", "--users", "4")
    assert set(run("info", out, "--json")["rosters"]) == {"synthetic-6", "three", "two", "rest"}
    run("split", out, "--name", "three", fails="'three'")
    run("split", out, "--name", "x", "--rule", "declared", "--ids", "/none", fails="/none")
    run("split", out, "--name", "x", "--rule", "declared", fails="declared")
    run("split", tmp_path / "none", "--name", "x", fails=str(tmp_path / "none"))
    run("synthesize", *SMALL, "--out", out, fails=str(out))


@pytest.mark.slow
def test_synthesize_into_the_cache_is_done_once():
    one = run("synthesize", *SMALL, "--json")
    assert run("synthesize", *SMALL, "--json")["path"] == one["path"]
    assert run("synthesize", *SMALL, "--seed", "1", "--json")["path"] != one["path"]
    assert "ready:" in run("synthesize", *SMALL)
    equal = run("synthesize", *SMALL, "--spread", "0", "--json")
    assert equal["path"] != one["path"]
    offsets = np.load(Path(equal["path"]) / "sentences" / "user_offsets.npy")
    assert set(np.diff(offsets)) == {15}
    run("synthesize", *SMALL, "--spread", "-1", fails="spread")
    listed = run("list", "--json")["here"]
    assert {row["state"] for row in listed} == {"prepared, SYNTHETIC"}
    (Path(one["path"]) / "users.json").write_text("[]")
    assert "damaged" in run("list")


def test_import_of_a_tff_file(tmp_path, tff_file):
    out = tmp_path / "c"
    made = run("import", tff_file, "--users", "20", "--out", out, "--json")
    assert made["default_roster"] == "tff-20"
    assert made["source"]["select"] == "first-sorted"
    assert made["rosters"]["tff-20"]["num_public_users"] == 10
    options = "--select seeded --seed 3 --users 5 --name mine --json"
    seeded = run("import", tff_file, *options.split())
    assert (seeded["name"], seeded["default_roster"]) == ("mine", "tff-5-seed-3")
    assert run("info", "mine", "--json")["path"] == seeded["path"]
    assert "mine" in run("list")
    run("import", tff_file, "--users", "20", fails="--name")
    run("import", tff_file, "--users", "31", "--name", "x", fails="31")
    run("import", tff_file, "--users", "30", "--out", tmp_path / "d", fails="30")
    given = ("--users", "20", "--word-counts", "x", "--out", out)
    run("import", tff_file, *given, fails="--vocabulary")


@pytest.mark.slow
def test_info_says_what_training_and_test_share(tmp_path, dump):
    own = tmp_path / "own"
    run("import", dump, "--own-text-only", "--out", own)
    run("import", dump)
    found = run("info", "cooking", "--json")["shared"]
    # Every post of the dump is a question of its own, of one of five titles.
    assert found["by-thread"]["thread"] == {"same_user": 0, "anyone": 0}
    assert found["by-thread"]["title"] == {"same_user": 0, "anyone": 1}
    assert found["by-thread"]["near"] == {"0.8": 1, "0.6": 1}
    assert found["by-sentence"]["measured"]["sentences"] == 0  # of one sentence a user
    assert "title in training text of anyone" in run("info", "cooking")
    assert "not kept" in run("info", own)


def test_info_says_which_split_a_corpus_cannot_be_given(tmp_path, tff_writer, posts):
    # The one public user has words in answers alone.
    path = tff_writer.write(tmp_path / "so.sqlite", {"1": posts, "2": posts})
    out = tmp_path / "c"
    run("import", path, "--users", "1", "--out", out)
    found = run("info", out, "--json")["shared"]
    assert found["by-thread"]["missing"]
    assert found["by-sentence"]["thread"]["same_user"] == 0
    assert "by-thread: " in run("info", out)


def test_import_with_published_counts_beside_the_file(tmp_path, tff_file):
    options = ("--users", "30", "--vocabulary", "published", "--out", tmp_path / "c")
    command = ("import", tff_file, *options, "--json")
    run(*command, fails="stackoverflow.word_count.tar.bz2")
    words, tags = tmp_path / "w", tmp_path / "t"
    words.write_text("b 5\na 4\n")
    tags.write_text('{"t1": 3}')
    made = run(*command, "--word-counts", words, "--tag-counts", tags)
    assert made["rosters"]["tff-30"]["vocabulary"]["source"] == "private"


@pytest.mark.slow
def test_import_of_a_dump(tmp_path, dump):
    made = run("import", dump, "--json")
    assert (made["name"], made["default_roster"]) == ("cooking", "cooking-all")
    assert made["path"].startswith(str(tmp_path / "cache"))
    assert run("import", dump, "--json")["path"] == made["path"]
    run("import", dump, "--own-text-only", fails="--name")
    own = run("import", dump, "--own-text-only", "--name", "cooking-own", "--json")
    assert own["own_text_only"] is True
    assert run("info", "cooking", "--json")["path"] == made["path"]
    assert run("info", "cooking-own", "--json")["path"] == own["path"]
    run("import", "absent", fails="'absent'")
    run("info", dump, fails=str(dump))


@pytest.mark.parametrize("wanted", ["/none/such.sqlite", "a.sqlite", "~/none.xml", "*", "?", "."])
def test_a_raw_file_that_is_not_there_or_a_folder_is_one_clear_line(wanted):
    run("import", wanted, fails=wanted)


@pytest.mark.parametrize(
    "number", [1, 2, 30, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4, 5, 6))]
)
def test_four_fifths_of_few_users_are_on_the_roster_and_one_alone_is_refused(
    tmp_path, tff_writer, posts, number
):
    path = tff_writer.write(tmp_path / "so.sqlite", {str(n): posts for n in range(number)})
    if number == 1:
        run("import", path, fails=str(path))
        return run("import", path, "--users", "1", "--name", "one", fails="1")
    made = run("import", path, "--json")
    assert (made["name"], made["default_roster"]) == ("stackoverflow", f"tff-{4 * number // 5}")
    facts = made["rosters"][made["default_roster"]]
    assert facts["num_users"] == 4 * number // 5
    assert facts["num_users"] + facts["num_public_users"] == number
    assert made["default_roster"] in run("import", path)
    # By its name it is what a run takes.
    assert run("info", "stackoverflow", "--json")["path"] == made["path"]


def test_info_of_a_raw_tff_file(tff_file):
    facts = run("info", tff_file, "--json")
    assert facts["schema"] == "stackoverflow"
    assert (facts["clients"], facts["examples"]) == (30, 90)
    assert "stackoverflow" in run("info", tff_file)


def test_list_says_what_can_be_fetched_and_from_where():
    listed = run("list", "--json")
    assert listed["here"] == []
    urls = {url for row in listed["fetchable"] for url in row["urls"]}
    bucket = "https://storage.googleapis.com/tff-datasets-public/"
    assert bucket + "stackoverflow.sqlite.lzma" in urls
    text = run("list")
    assert "onstartups" in text
    assert "made when first used, SYNTHETIC" in text


def test_fetch_then_use_by_name(server, tff_file, tmp_path, monkeypatch):
    body = tff_file.read_bytes()
    server.files["stackoverflow.sqlite.lzma"] = body
    known = downloads.DATASETS["stackoverflow"]
    entry = replace(known, files=known.files[:1])
    monkeypatch.setattr(commands, "DATASETS", {"stackoverflow": entry})
    (row,) = run("fetch", "stackoverflow", "--mirror", server.url, "--json")
    assert row["sha256"] == hashlib.sha256(body).hexdigest()
    assert row["verified"] == "unknown"
    assert "stackoverflow.sqlite.lzma" in run("fetch", "stackoverflow", "--mirror", server.url)
    made = run("import", "stackoverflow", "--users", "20", "--name", "so20", "--json")
    assert made["default_roster"] == "tff-20"
    out = tmp_path / "elsewhere"
    run("fetch", "stackoverflow", "--mirror", server.url, "--out", out)
    assert (out / "stackoverflow.sqlite.lzma").read_bytes() == body


def test_fetch_refuses_what_is_not_the_file(server, tmp_path):
    server.files["shakespeare.sqlite.lzma"] = b"something else"
    run("fetch", "shakespeare", "--mirror", server.url, fails="shakespeare.sqlite.lzma")
    server.files["posts.xml"] = b"<posts/>"
    run("fetch", "onstartups", "--mirror", server.url, fails="posts.xml")
    run("fetch", "emnist", "--mirror", server.url, fails="404")
    run("fetch", "reuters", fails="'reuters'")
    assert list((tmp_path / "cache" / "downloads").rglob("*.*")) == []


def test_info_without_a_corpus_is_about_what_a_run_would_take(monkeypatch):
    sizes = {"num_words": 100, "num_tags": 6, "num_topics": 2}
    small = Shape(num_users=4, num_sentences=60, public_users=3, **sizes)
    monkeypatch.setattr(locate, "STAND_IN", small)
    assert run("info", "--json")["synthetic"] is True


def test_ids_name_a_quote_that_its_line_does_not_close(tmp_path):
    """Its own line alone is bad: everybody else is listed, and the command ends with an error."""
    run("key", tmp_path / "key")
    people, key = tmp_path / "people.csv", ("--key", tmp_path / "key")
    people.write_text('user,text\nann,"great\nbob,a\ncy,b\ndave,15"\n', "utf-8")
    result = fedpriv("data", "ids", people, *key, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code and len(found["ids"]) == 3
    assert [line.partition(": ")[0] for line in found["problems"]] == [f"{people}, line 2"]
    people.write_text('user,text\nann,"great\nbig"\nbob,a\n', "utf-8")
    assert len(run("ids", people, *key, "--line-breaks", "--json")["ids"]) == 2
    run("ids", people, *key, "--user", "who", fails="'who'")


@pytest.mark.parametrize("simulated", [True, False])
def test_a_simulation_on_own_files_tells_what_it_cannot_take(tmp_path, simulated):
    write_key(tmp_path / "key")
    (tmp_path / "people.csv").write_text("user,x\nann,1\nbob,none\n,3\n")
    users = local_users(
        Table(columns={"x": float}), len, data=NodeData(tmp_path / "people.csv", tmp_path / "key")
    )
    task = SimpleNamespace(data=SimpleNamespace(users=users), measures=(), equal_by_chance=True)
    cautions = find_cautions(task, None, simulated=simulated)
    assert len(cautions) == simulated
    assert not simulated or (cautions[0].startswith("2 ") and "line 4" in cautions[0])
