"""The launcher's parts, without a network."""

import ast
import hashlib
import importlib
import inspect
import io
import logging
import os
import signal
import sys
import time
import types
import zipfile
from functools import partial
from types import SimpleNamespace

import httpx
import pytest

from fedpriv.backends.flower.exchange import SuperLinkGoneError, naming_superlink
from fedpriv.cli import app
from fedpriv.deploy import flower_private, warm
from fedpriv.deploy.commands import BUNDLES_VARIABLE, pinned_bundles
from fedpriv.deploy.flower_private import _in_one_line, tell_causes
from fedpriv.deploy.launcher import ClientGoneError, Clients
from fedpriv.deploy.processes import adopt_orphans, children, end_orphans, fork
from tests.harness.command_line import CliRunner, refusal
from tests.harness.refusals import refuses
from tests.harness.waiting import Clock


def said(child):
    lines = []
    while (more := child.lines()) is not None:
        lines += more
    return lines


@pytest.mark.parametrize(
    ("command", "module", "name"),
    [
        (["supernode", "--insecure"], "flwr.supernode.start_client_internal", "pull_objects"),
        (
            ["superexec", "--insecure", "--runtime-api-address", "h:1"],
            "flwr.supercore.retry",
            "make_simple_http_retry_invoker",
        ),
    ],
    ids=["supernode", "superexec"],
)
def test_a_flower_without_a_private_name_is_refused_with_it(monkeypatch, command, module, name):
    monkeypatch.setattr(flower_private, "version", lambda name: "9.9.9")
    monkeypatch.delattr(importlib.import_module(module), name)
    line = refusal(*command)
    assert "9.9.9" in line and f"{module}.{name}" in line


def test_every_private_name_that_is_used_is_asked_for():
    """Without one in the list, a Flower that lacks it would fail in the middle of a message."""
    tree = ast.parse(inspect.getsource(flower_private))
    public = ("flwr.app", "flwr.clientapp")
    used = {
        (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("flwr.")
        for alias in node.names
        if node.module not in public
    }
    every = (flower_private.OF_SUPEREXEC, flower_private.OF_SUPERNODE, flower_private.OF_OPERATOR)
    listed = {
        (module, n.split(".")[0]) for one in every for module, names in one.items() for n in names
    }
    # Put in the place of a module's own, by assignment.
    replaced = {
        ("flwr.superlink.runtime.run_serverapp", "install_from_fab"),
        ("flwr.superlink.grid.http_grid", "make_simple_http_retry_invoker"),
        ("flwr.superlink.grid.http_grid", "pull_objects"),
        ("flwr.cli.log", "start_stream"),
        ("flwr.cli.run.run", "start_stream"),
        ("flwr.supernode.cli.flower_supernode", "start_client_internal"),
        ("flwr.supernode.fleet_http_connection", "make_simple_http_retry_invoker"),
        ("flwr.supernode.start_client_internal", "pull_objects"),
        ("flwr.supernode.start_client_internal", "time"),
    }
    assert used | replaced == listed


def test_who_sent_a_message_is_kept_as_a_line():
    from flwr.app import ConfigRecord, Error, Message, Metadata, RecordDict

    metadata = Metadata(7, "m", 1, 2, "", "3", 1.5, 60.0, "train", None, 4)
    sent = Message(content=RecordDict({"secret": ConfigRecord({"a": 1})}), metadata=metadata)
    line = flower_private.sender_line(sent)
    found = flower_private.read_sender(line)
    names = ("run_id", "message_id", "src_node_id", "dst_node_id", "group_id", "message_type")
    for name in (*names, "ttl", "created_at", "src_task_id", "dst_task_id"):
        assert getattr(found.metadata, name) == getattr(sent.metadata, name)
    assert not found.content
    assert b"secret" not in line
    answer = Message(Error(8, "killed"), reply_to=found)
    assert (answer.metadata.dst_node_id, answer.metadata.reply_to_message_id) == (1, "m")


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("loaded_app:held.app", ""),
        ("loaded_app:held.gone", "held.gone"),
        ("loaded_app:held", "SimpleNamespace"),
        ("gone_app:app", "gone_app"),
    ],
)
def test_an_app_is_loaded_from_where_the_bundle_says(reference, said, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "loaded_app", raising=False)
    (tmp_path / "pyproject.toml").write_text(
        f'[tool.flwr.app.components]\nclientapp = "{reference}"\n'
    )
    (tmp_path / "loaded_app.py").write_text(
        "from types import SimpleNamespace\nfrom flwr.clientapp import ClientApp\n"
        "held = SimpleNamespace(app=ClientApp())\n"
    )
    if not said:
        assert type(flower_private.load_client_app(tmp_path)).__name__ == "ClientApp"
        return
    with refuses((flower_private.LoadClientAppError, ModuleNotFoundError), said):
        flower_private.load_client_app(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--bundle", "abc"], "abc"),
        (["--idle-seconds", "0"], "idle-seconds"),
        (["--idle-seconds", "11"], "idle-seconds"),
        (["--node-config", "a=="], "a=="),
        (["--users", "/a", "--data", "/b"], "--data"),
        (["--root-certificates", "/none.pem"], "--root-certificates"),
    ],
)
def test_what_is_asked_wrongly_is_said(options, message):
    done = CliRunner().invoke(
        app, ["superexec", "--insecure", "--runtime-api-address", "127.0.0.1:1", *options]
    )
    assert isinstance(done.exception, ValueError) and message in str(done.exception)


def test_bundles_may_be_named_in_the_environment_and_a_blank_list_is_none_at_all():
    one, two = "0" * 64, "1" * 64
    assert pinned_bundles([], {}) == pinned_bundles([], {BUNDLES_VARIABLE: ""}) == frozenset()
    assert pinned_bundles([one], {BUNDLES_VARIABLE: f"{two}\n"}) == {one, two}
    for blank in (" ", ",", "\n"):
        with pytest.raises(ValueError):
            pinned_bundles([one], {BUNDLES_VARIABLE: blank})
    with refuses(ValueError, "FEDPRIV_BUNDLES", "abc", "SHA-256"):
        pinned_bundles([], {BUNDLES_VARIABLE: "abc"})


def test_a_fork_says_lines_and_hears_them():
    def work(told, say):
        for line in os.read(told, 100).splitlines():
            say(line[::-1])

    child = fork(work, list)
    child.tell(b"abc")
    assert said(child) == [b"cba"]
    _, status = os.waitpid(child.pid, 0)
    assert status == 0
    child.close()


def leave_behind(told, say):
    """Fork a process that leaves its parent's session, and end before it."""
    if not (pid := os.fork()):
        os.setsid()
        time.sleep(600)
        os._exit(0)
    say(str(pid).encode())


def test_the_end_of_a_fork_does_not_wait_for_what_it_left_behind():
    """Which holds its pipe open; a killed message would wait a minute for Flower's heartbeats."""
    child = fork(leave_behind, list)
    (pid,) = said(child)
    child.close()
    os.kill(int(pid), signal.SIGKILL)


@pytest.mark.slow
def test_what_a_fork_left_behind_is_ended_and_what_it_should_keep_is_not():
    def alone(told, say):
        adopt_orphans()
        kept, child = fork(lambda told, say: signal.pause(), list), fork(leave_behind, list)
        (left,) = said(child)
        os.waitpid(child.pid, 0)
        assert children() == {kept.pid, int(left)}
        assert end_orphans([kept.pid]) == 1 and end_orphans([kept.pid]) == 0
        assert children() == {kept.pid}
        kept.close()
        say(left)

    child = fork(alone, list)
    (left,) = said(child)
    with pytest.raises(ProcessLookupError):
        os.kill(int(left), 0)
    child.close()


def bundle_of(**files):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, text in files.items():
            archive.writestr(name.replace("_py", ".py").replace("__", "/"), text)
    return data.getvalue()


@pytest.fixture
def unpacking(monkeypatch):
    """Flower's own unpacking, without what it asks of an app; how often it unpacked."""
    counts = []

    def unpack(bundle, folder):
        place = folder / "apps" / "one"
        if not place.exists():
            counts.append(folder)
            with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
                archive.extractall(place)
        return place

    monkeypatch.setattr(warm, "unpack", unpack)
    return counts


def test_a_bundle_that_was_changed_on_disk_is_unpacked_anew(unpacking, tmp_path):
    bundle = bundle_of(app_py="x = 1", room__more_py="y = 2")
    place = warm.unpacked(bundle, tmp_path)
    assert hashlib.sha256(bundle).hexdigest() in str(place)
    (place / "__pycache__").mkdir()
    assert warm.unpacked(bundle, tmp_path) == place and len(unpacking) == 1
    assert (place / "__pycache__").exists()  # what was compiled of it is kept
    for change in (
        lambda: (place / "app.py").write_text("x = 666"),
        lambda: (place / "hidden.py").write_text("x = 666"),
        lambda: (place / "room" / "more.py").unlink(),
    ):
        change()
        before = len(unpacking)
        warm.unpacked(bundle, tmp_path)
        assert len(unpacking) == before + 1
        assert (place / "app.py").read_text() == "x = 1" and not (place / "hidden.py").exists()
        assert (place / "room" / "more.py").exists()


@pytest.mark.parametrize("changed", [False, True])
def test_code_that_a_bundle_has_otherwise_is_forgotten(monkeypatch, tmp_path, changed):
    for place in ("installed", "bundled"):
        (tmp_path / place / "madeup").mkdir(parents=True)
        (tmp_path / place / "madeup" / "__init__.py").write_text("")
        (tmp_path / place / "madeup" / "room.py").write_text("x = 1")
    (tmp_path / "installed" / "madeup" / "not_in_bundles.py").write_text("")
    if changed:
        (tmp_path / "bundled" / "madeup" / "room.py").write_text("x = 2")
    for name in ("madeup", "madeup.room"):
        module = types.ModuleType(name)
        module.__file__ = str(tmp_path / "installed" / "madeup" / "__init__.py")
        monkeypatch.setitem(sys.modules, name, module)
    warm.forget_other_code(tmp_path / "bundled")
    assert ("madeup" in sys.modules, "madeup.room" in sys.modules) == (not changed, not changed)


class AskedClock(Clock):
    """A clock by which a client app asks at some times."""

    asks = ()

    def sleep(self, seconds):
        super().sleep(seconds)
        while self.asks and self.asks[0] <= self.now:
            self.asks.pop(0)
            self.clients.asked()


def test_a_supernode_waits_for_a_client_app_and_leaves_when_none_asks_any_more(tmp_path, caplog):
    clock = AskedClock()
    clients = clock.clients = Clients(folder=tmp_path / "asked", clock=clock, sleep=clock.sleep)
    clock.sleep(60.0)
    clients.check()  # it may be starting
    with pytest.raises(ClientGoneError):
        clock.sleep(70.0)
        clients.check()
    clock.now = 0.0
    clock.asks = [100.0]
    clients.wait()
    assert clock.now == pytest.approx(100.0, abs=1.0)
    assert len([line for line in caplog.messages if "superexec" in line]) == 2  # after 8 and 68 s
    for _ in range(60):
        clients.asked()
        clients.check()
        clock.sleep(0.5)
    clock.sleep(25.0)
    clients.check()  # a launcher may be slow
    clock.sleep(20.0)
    with pytest.raises(ClientGoneError):
        clients.check()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--runtime-api-address", "supernode-1"], "supernode-1"),
        (["--runtime-api-address", "h:9094", "--users", "/not/there"], "/not/there"),
        (["--runtime-api-address", "h:9094", "--data", "/not/there"], "/not/there"),
    ],
)
def test_a_launcher_refuses_at_once_what_it_would_try_for_ever(words, named, monkeypatch):
    monkeypatch.setattr("fedpriv.deploy.launcher.superexec", lambda *given: None)
    assert named in refusal("superexec", "--insecure", *words)


def test_a_name_that_is_not_resolved_is_logged_with_its_host_and_cause(caplog):
    theirs = []
    invoker = SimpleNamespace(on_backoff=theirs.append)
    tell_causes(invoker, "supernode-9:9094")
    error = httpx.ConnectError("[Errno -2] Name or service not known")
    with caplog.at_level(logging.WARNING, "fedpriv"):
        for tries, seconds in enumerate((0.0, 1.0, 5.0, 61.0), start=1):
            state = SimpleNamespace(tries=tries, elapsed_time=seconds, exception=error)
            invoker.on_backoff(state)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2 and len(theirs) == 4  # at first, and after a minute
    assert all("supernode-9:9094" in line and "Name or service" in line for line in lines)


def test_a_thread_that_loses_its_superlink_logs_a_line(caplog):
    others = []
    hook = partial(_in_one_line, others.append)
    with caplog.at_level(logging.WARNING, "fedpriv"):
        hook(SimpleNamespace(exc_value=httpx.ConnectError("[Errno 111] Connection refused")))
        hook(SimpleNamespace(exc_value=ValueError("a fault")))
    (line,) = [record.getMessage() for record in caplog.records]
    assert "Connection refused" in line and len(others) == 1


def test_a_superlink_that_is_gone_is_a_line_with_what_to_do():
    with refuses(SuperLinkGoneError, "Connection refused"):  # noqa: SIM117
        with naming_superlink("go on"):
            raise httpx.ConnectError("[Errno 111] Connection refused")
    with pytest.raises(ValueError), naming_superlink("go on"):
        raise ValueError("other")
