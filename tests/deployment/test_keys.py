"""The script that makes a deployment's keys: modes, names, and what is there or half made.

`docs/deployment.md` has its command.
"""

import json
import os
import shutil
import stat
import subprocess

import pytest

from fedpriv.backends.flower.registry import read_node_keys
from fedpriv.deploy.checks import check_keys
from tests.deployment.layout import CHECKOUT

USERS = {"node-1": ["ann", "bob"], "node-2": ["cid"]}

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None or shutil.which("ssh-keygen") is None,
    reason="needs openssl and ssh-keygen",
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "deploy" / "parts").mkdir(parents=True)
    (tmp_path / "deploy" / "parts" / "users.json").write_text(json.dumps(USERS), "utf-8")
    return tmp_path / "deploy"


def made(folder, *arguments, mask=0o000):
    """Run the script under a mask that hides nothing."""
    return subprocess.run(
        ["sh", "server/keys.sh", str(folder), *arguments],
        cwd=CHECKOUT, capture_output=True, text=True, check=False, umask=mask,
        env={**os.environ, "FEDPRIV_USER": f"{os.geteuid()}:{os.getegid()}"},
    )  # fmt: skip


def content(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder): path.read_bytes() for path in files}


def names_of(certificate):
    shown = subprocess.run(
        ["openssl", "x509", "-noout", "-ext", "subjectAltName", "-in", str(certificate)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return shown.stdout


@pytest.mark.slow
def test_every_file_is_its_owners_alone_whatever_the_mask(folder):
    assert made(folder, "2").returncode == 0
    paths = [*(folder / "keys").rglob("*"), folder / "node-users.json", *folder.glob("[rado]*")]
    paths = [path for path in paths if path.name != "parts"]
    modes = {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in paths}
    assert modes == {0} and len(paths) > 20
    for holder in ("superlink", "gate", "serverapp", "node-1", "node-2", "client-1", "client-2"):
        check_keys(folder / "keys" / holder)
    assert not (folder / "keys" / "client-1" / "node.key").exists()
    bound = read_node_keys(folder / "node-users.json")
    assert sorted((one.name, sorted(one.user_ids)) for one in bound.values()) == [
        ("node-1", ["ann", "bob"]),
        ("node-2", ["cid"]),
    ]


@pytest.mark.slow
def test_what_is_there_stays_as_it_is(folder):
    assert made(folder, "2", "fl.example.org").returncode == 0
    before = content(folder)
    assert made(folder, "2", "fl.example.org").returncode == 0
    assert content(folder) == before
    (folder / "keys" / "ca.key").unlink()  # kept elsewhere, as the guide asks
    assert made(folder, "2", "fl.example.org").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "lost",
    ["superlink/nodes/node-2.pub", "gate/gate.pem", "node-1/runtime.pem", "serverapp/ca.crt"],
)
def test_what_is_half_made_is_made_again(folder, lost):
    assert made(folder, "2").returncode == 0
    (folder / "keys" / lost).unlink()
    (folder / "keys" / "superlink" / "superexec.secret").write_bytes(b"")
    assert made(folder, "2").returncode == 0
    keys = folder / "keys"
    assert (keys / lost).is_file() and (keys / "superlink" / "superexec.secret").stat().st_size
    for at, file in (("gate", "gate"), ("node-1", "runtime")):
        key, certificate = keys / at / f"{file}.key", keys / at / f"{file}.pem"
        public = [
            subprocess.run(["openssl", *words], capture_output=True, check=True).stdout
            for words in (["pkey", "-pubout", "-in", str(key)],
                          ["x509", "-pubkey", "-noout", "-in", str(certificate)])
        ]  # fmt: skip
        assert public[0] == public[1]
    assert len(read_node_keys(folder / "node-users.json")) == 2


@pytest.mark.slow
def test_a_name_that_a_certificate_lacks_is_said(folder):
    assert made(folder, "2").returncode == 0
    done = made(folder, "2", "fl.example.org")
    assert done.returncode == 1 and "is not called fl.example.org" in done.stderr
    (folder / "keys" / "gate" / "gate.pem").unlink()
    assert made(folder, "2", "fl.example.org").returncode == 0
    assert "fl.example.org" in names_of(folder / "keys" / "gate" / "gate.pem")


def test_without_a_list_of_users_both_ways_to_one_are_said(folder):
    (folder / "parts" / "users.json").unlink()
    done = made(folder, "2")
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1 and "fedpriv data part CORPUS --nodes 2" in line
    assert "fedpriv data roster node-1.ids" in line and f"--users {folder}/parts/users.json" in line
    assert not (folder / "keys").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["3"], "users of 2 nodes"),
        (["1"], "users of 2 nodes"),
        (["two"], "NODES two is no number"),
        (["0"], "NODES 0 is no number"),
        (["2", "a,DNS:b"], "'a,DNS:b' is no name"),
    ],
)
def test_what_is_asked_wrongly_is_one_line_and_nothing_is_made(folder, arguments, said):
    done = made(folder, *arguments)
    assert done.returncode == 1 and said in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (folder / "keys").exists()


def test_files_that_were_there_before_are_their_owners_alone(folder):
    """A node's files come from other programs, under whatever mask."""
    own = folder / "data" / "node-1"
    own.mkdir(parents=True)
    (own / "visits.csv").write_text("person,visits\n")
    for path in (folder / "data", own):
        path.chmod(0o755)
    (own / "visits.csv").chmod(0o644)
    (folder / "parts" / "users.json").chmod(0o644)
    assert made(folder, "2").returncode == 0
    found = [*(folder / "data").rglob("*"), folder / "data", *(folder / "parts").rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in found} == {0}
    assert own / "visits.csv" in found
