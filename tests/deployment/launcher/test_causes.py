"""Who is not reached, and why, is logged by the launcher's own lines."""

import logging
from functools import partial
from types import SimpleNamespace

import httpx
import pytest

from fedpriv.backends.flower.exchange import SuperLinkGoneError, naming_superlink
from fedpriv.deploy.flower_private import _in_one_line, tell_causes
from tests.harness.refusals import refuses


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
