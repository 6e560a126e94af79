"""What a container refuses to start with, each with the way out."""

from __future__ import annotations

import os
import socket

import pytest
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.data.parts.cut import SERVER, cut
from fedpriv.deployment import checks
from fedpriv.deployment.superlink import superlink


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
    with pytest.raises(PermissionError, match=r"root's; run it as a user of its own"):
        checks.check_user()
    monkeypatch.setattr(os, "geteuid", lambda: 10001)
    checks.check_user()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o610, 0o601])
@pytest.mark.parametrize("name", ["node.key", "superexec.secret"])
def test_a_private_file_that_others_have_any_right_to_is_refused(keys, name, mode):
    checks.check_keys(keys)
    (keys / name).chmod(mode)
    with pytest.raises(PermissionError, match=f"{name} has mode {mode:04o}.*chmod 600"):
        checks.check_keys(keys)


def test_a_key_that_the_process_cannot_read_is_refused(keys, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError, match="cannot be read by user"):
        checks.check_keys(keys)


def test_a_folder_without_keys_says_how_they_are_made(tmp_path):
    with pytest.raises(ValueError, match=r"sh server/keys\.sh"):
        checks.check_keys(tmp_path)


def test_users_are_counted_and_their_lack_is_refused(tiny_corpus, tmp_path):
    made = cut(tiny_corpus, tmp_path / "parts", nodes=2)
    for name, ids in made.users.items():
        assert checks.check_users(made.folder / name) == len(ids)
    assert checks.check_users(made.folder / SERVER) == len(tiny_corpus.listed())
    with pytest.raises(ValueError, match="not a prepared corpus"):
        checks.check_users(tmp_path)


def test_a_damaged_part_is_refused(tiny_corpus, tmp_path):
    made = cut(tiny_corpus, tmp_path / "parts", nodes=1)
    (users,) = (made.folder / "node-1").rglob("users.json")
    users.write_text("{}", "utf-8")
    with pytest.raises(ValueError, match=r"users\.json"):
        checks.check_users(made.folder / "node-1")


def test_a_port_without_a_listener_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        checks.check_listens(port)
    with pytest.raises(ConnectionError, match=f"nothing listens on port {port}"):
        checks.check_listens(port)


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path):
    checks.check_writes(tmp_path)
    with pytest.raises(PermissionError, match="cannot be written to"):
        checks.check_writes(tmp_path / "none")


def test_a_superlink_without_any_nodes_key_does_not_start(keys):
    with pytest.raises(ValueError, match="no node's public key"):
        superlink(keys, 1, tell=print)


def test_the_command_checks_the_user_first(keys, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    done = CliRunner().invoke(app, ["deploy", "check", "--keys", str(keys)])
    assert done.exit_code != 0 and "root's" in str(done.exception)
    monkeypatch.setattr(os, "geteuid", lambda: 10001)
    done = CliRunner().invoke(app, ["deploy", "check", "--keys", str(keys)])
    assert done.exit_code == 0 and "its owner's alone" in done.output
