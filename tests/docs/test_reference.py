"""Tables of the reference that are written by hand say what the code has."""

import re
import tomllib

import pytest

import fedpriv as fp
from fedpriv.backends.flower import settings
from fedpriv.runs import folder
from tests.backends.flower.real.processes import DECLARED
from tests.deployment.layout import CHECKOUT
from tests.harness import toy_users
from tests.running.loop.test_hardened import EXACT, PARAMS, ROSTER, Ones

_NAMES = re.compile(r"`([^`]+)`")


def tables(page):
    """Return the rows of each table of a page, as lists of cells."""
    found, rows = [], []
    lines = (CHECKOUT / "docs" / "reference" / page).read_text("utf-8").splitlines()
    for line in [*lines, ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows:
            found.append(rows[2:])
            rows = []
    return found


def test_run_config_has_each_key_that_the_app_declares_with_its_default():
    rows, _ = tables("run-config.md")
    said = {
        key.strip("`"): tomllib.loads(f"value = {default.strip('`')}")["value"]
        for key, default, _ in rows
    }
    assert said == settings.OWN_KEYS | {"options": ""}
    page = (CHECKOUT / "docs" / "reference" / "run-config.md").read_text("utf-8")
    short = {key: DECLARED[key] for key in settings.SHORT_KEYS}
    assert said | short == DECLARED
    assert all(f"`{key}`" in page for key in short)


def test_node_config_has_each_key_that_a_node_reads():
    _, rows = tables("run-config.md")
    said = {name for row in rows for name in _NAMES.findall(row[0])}
    guard = {"guard-users", "user-seconds", "user-memory-mb"}
    assert said == {*settings.NODE_KEYS, "partition-id", "num-partitions", *guard}


@pytest.mark.slow
def test_run_folder_has_each_file_of_a_run_and_no_other(tmp_path):
    (rows,) = tables("run-folder.md")
    said = {name for row in rows for name in _NAMES.findall(row[0])}
    of_exports = {"model.safetensors", "README.md"}
    reserved = folder._RESERVED_FILES - of_exports
    assert reserved <= said, sorted(reserved - said)
    for secure in (False, True):
        path = tmp_path / f"secure-{secure}"
        fp.run(toy_users.experiment(), path, secure=secure, rounds=2, progress=False)
        for file in path.rglob("*"):
            name = re.sub(r"round-\d{6}", "round-NNNNNN", str(file.relative_to(path)))
            known = name in said or name.split("/")[0] + "/" in said
            assert known or file.is_dir() or name.startswith("."), name
    starred = {name for row in rows if row[0].endswith("*") for name in _NAMES.findall(row[0])}
    own = tmp_path / "own"
    fp.averaging(EXACT, roster=ROSTER, params=PARAMS, out=own)(Ones())
    written = {str(file.relative_to(own)) for file in own.rglob("*") if file.is_file()}
    assert {re.sub(r"round-\d{6}", "round-NNNNNN", name) for name in written} == starred


def test_messages_of_the_faq_are_the_codes():
    page = (CHECKOUT / "docs" / "faq.md").read_text("utf-8")
    quoted = re.findall(r"^\| `([^`]+)`", page, re.MULTILINE)
    sources = [path.read_text("utf-8") for path in (CHECKOUT / "fedpriv").rglob("*.py")]
    assert len(quoted) >= 6
    assert [said for said in quoted if not any(said in source for source in sources)] == []
