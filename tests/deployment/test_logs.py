"""What the containers of a server log says nothing of which node answered."""

import re
import sys

from fedpriv.deploy import superlink as module
from tests.deployment.layout import CHECKOUT

_PROGRAM = """
import os, sys
print(os.environ.get("FLWR_LOG_LEVEL"))
sys.exit(7)
"""


def test_the_superlink_logs_no_answers(tmp_path, capfd, monkeypatch):
    """Flower's own record of an answer is one of level INFO."""
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes" / "node-1.pub").write_text("a key")
    monkeypatch.setattr(module, "_program", lambda name: [sys.executable, "-c", _PROGRAM])
    monkeypatch.setattr(module, "_wait_for", lambda process, url, ca: process.wait())
    monkeypatch.setattr(module, "register", lambda *given, **named: None)
    monkeypatch.setenv("FLWR_LOG_LEVEL", "DEBUG")
    assert module.superlink(tmp_path, 8000, tell=print) == 7
    assert capfd.readouterr().out.split() == ["WARNING"]


def test_the_gate_logs_no_requests():
    """At "error" and below nginx logs address and second of uploads that wait or are held back."""
    text = (CHECKOUT / "server" / "gate.conf").read_text("utf-8")
    assert re.findall(r"^ *error_log (.*);", text, re.MULTILINE) == ["stderr crit"]
    assert re.findall(r"^ *access_log (.*);", text, re.MULTILINE) == ["off"]
