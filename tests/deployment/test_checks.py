"""What a container refuses to start with, each with the way out."""

import http.server
import os
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedpriv.datasets.local_data import NodeData
from fedpriv.datasets.stackexchange import manifest as manifests
from fedpriv.datasets.stackexchange.parts import SERVER, cut_corpus
from fedpriv.datasets.user_ids import write_key
from fedpriv.deploy import checks
from fedpriv.deploy.launcher import ASKED, Clients
from fedpriv.deploy.superlink import superlink
from tests.harness.refusals import refuses


@pytest.fixture
def keys(tmp_path):
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o700)
    for name, mode in (("ca.crt", 0o644), ("node.key", 0o600), ("superexec.secret", 0o600)):
        (folder / name).write_text("x", "utf-8")
        (folder / name).chmod(mode)
    return folder


def test_root_is_refused_and_anybody_else_is_not(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(PermissionError):
        checks.check_user()
    monkeypatch.setattr(os, "geteuid", lambda: 10001)
    checks.check_user()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o610, 0o601])
@pytest.mark.parametrize("name", ["node.key", "superexec.secret"])
def test_a_private_file_that_others_have_any_right_to_is_refused(keys, name, mode):
    checks.check_keys(keys)
    (keys / name).chmod(mode)
    with refuses(PermissionError, name, 600):
        checks.check_keys(keys)


def test_users_are_counted_and_their_lack_is_refused(tiny_corpus, tmp_path):
    made = cut_corpus(tiny_corpus, tmp_path / "parts", nodes=2)
    for name, ids in made.users.items():
        assert checks.check_users(made.folder / name) == len(ids)
    assert checks.check_users(made.folder / SERVER) == len(tiny_corpus.listed())
    with refuses(ValueError, tmp_path):
        checks.check_users(tmp_path)


def test_a_large_file_that_cannot_be_read_is_refused(tiny_corpus, tmp_path, monkeypatch):
    """Those that are not compared with their checksum whenever a corpus is opened."""
    made = cut_corpus(tiny_corpus, tmp_path / "parts", nodes=1)
    monkeypatch.setattr(manifests, "_CHECKED_ON_OPEN", 0)
    assert checks.check_users(made.folder / "node-1") > 0
    whole, refused = Path.open, []

    def may_not(path, mode="r", *arguments, **named):
        if path.name == "words.npy":
            refused.append(path)
            raise PermissionError(13, "Permission denied", str(path))
        return whole(path, mode, *arguments, **named)

    monkeypatch.setattr(Path, "open", may_not)
    with pytest.raises(ValueError):
        checks.check_users(made.folder / "node-1")
    assert refused


@pytest.fixture
def own(tmp_path):
    """A node's own files, and the key of their ids."""
    write_key(tmp_path / "people.key")
    (tmp_path / "people").mkdir()
    (tmp_path / "people" / "ann.csv").write_text("a\n1\n", "utf-8")
    return NodeData(tmp_path / "people", tmp_path / "people.key")


def test_a_nodes_own_files_are_opened_and_their_lack_is_refused(own, tmp_path):
    checks.check_data(own)
    (own.path / "ann.csv").unlink()
    with pytest.raises(ValueError):
        checks.check_data(own)
    with pytest.raises(ValueError):
        checks.check_data(NodeData(tmp_path / "people.sqlite", own.key))
    (tmp_path / "people.txt").write_text("", "utf-8")
    with pytest.raises(ValueError):
        checks.check_data(NodeData(tmp_path / "people.txt", own.key))


def test_the_key_of_ids_is_its_owners_alone_and_is_a_key(own):
    own.key.chmod(0o640)
    with refuses(PermissionError, "0640"):
        checks.check_data(own)
    own.key.chmod(0o600)
    own.key.write_text("", "utf-8")
    with refuses(ValueError, 32):
        checks.check_data(own)


class _Health(http.server.BaseHTTPRequestHandler):
    code = 200

    def do_GET(self):
        self.send_response(self.code)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def answering(tmp_path):
    """A server on loopback with a certificate of "localhost", and that certificate."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", "/CN=x", "-addext", "subjectAltName=DNS:localhost",
         "-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "ca.crt")],
        check=True, capture_output=True,
    )  # fmt: skip
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Health)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "ca.crt", tmp_path / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1], tmp_path / "ca.crt"
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_a_program_that_answers_is_healthy_and_one_that_fails_is_not(answering, monkeypatch):
    checks.check_answers(*answering)
    monkeypatch.setattr(_Health, "code", 503)
    with refuses(ConnectionError, 503):
        checks.check_answers(*answering)


@pytest.mark.slow
def test_a_port_that_is_open_and_answers_nothing_is_refused(answering, monkeypatch):
    """As a program's that has stopped: the system takes connections for it."""
    monkeypatch.setattr(checks, "_PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with refuses(ConnectionError, port):
            checks.check_answers(port, answering[1])
    with refuses(ConnectionError, port):
        checks.check_answers(port, answering[1])


@pytest.mark.parametrize("check", [checks.check_asks, checks.check_asked])
def test_a_launcher_or_a_supernode_that_is_not_heard_of_is_refused(check, tmp_path):
    """A launcher is answered; a SuperNode is asked for work by its client app."""
    clients = Clients(folder=tmp_path / "heard")
    with pytest.raises(ConnectionError):
        check(clients.folder)
    clients.asked()
    check(clients.folder)
    long_ago = time.time() - checks.MOST_SECONDS - 30
    os.utime(clients.folder / ASKED, (long_ago, long_ago))
    with refuses(ConnectionError, 90):
        check(clients.folder)


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path):
    checks.check_writes(tmp_path)
    with pytest.raises(PermissionError):
        checks.check_writes(tmp_path / "none")


@pytest.mark.parametrize(("read_only", "owner"), [(True, 0), (False, 0), (False, 7)])
def test_why_a_folder_cannot_be_written_to_is_told(tmp_path, monkeypatch, read_only, owner):
    tmp_path.chmod(0o500)
    there, user = tmp_path.stat(), os.geteuid()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    flags = SimpleNamespace(f_flag=os.ST_RDONLY if read_only else 0)
    monkeypatch.setattr(os, "statvfs", lambda path: flags)
    monkeypatch.setattr(os, "geteuid", lambda: there.st_uid + owner)
    names = [user, user + owner] if owner else [] if read_only else ["0500"]
    with refuses(PermissionError, *names):
        checks.check_writes(tmp_path)
    tmp_path.chmod(0o700)


def test_a_damaged_part_is_refused(tiny_corpus, tmp_path):
    made = cut_corpus(tiny_corpus, tmp_path / "parts", nodes=1)
    (users,) = (made.folder / "node-1").rglob("users.json")
    users.write_text("{}", "utf-8")
    with pytest.raises(ValueError):
        checks.check_users(made.folder / "node-1")


def test_a_key_that_the_process_cannot_read_is_refused(keys, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError):
        checks.check_keys(keys)


def test_a_superlink_without_any_nodes_key_does_not_start(keys):
    with pytest.raises(ValueError):
        superlink(keys, 1, tell=print)
