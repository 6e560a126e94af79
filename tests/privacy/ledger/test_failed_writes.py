"""Disks that fail, and two writers: never fewer charges than made."""

import errno
import os

import pytest

from fedpriv.privacy.ledger.chain import LedgerError
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.ledger.state import read_ledger
from tests.harness.disks import failing
from tests.harness.refusals import refuses
from tests.privacy.ledger.kept import DIGEST, create


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("name", ["write", "fsync"])
def test_a_failed_write_refuses_and_breaks_the_ledger_for_good(path, monkeypatch, name, error):
    ledger = create(path)
    ledger.charge(1, 1)
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, name, failing(error))
        with refuses(LedgerError, path):
            ledger.charge(2, 1)
    for call in (lambda: ledger.charge(2, 1), lambda: ledger.release(1, 1, DIGEST), ledger.resume):
        with refuses(LedgerError, path):
            call()
    ledger.close()
    with Ledger.open(path) as ledger:
        # Never fewer than were acknowledged; an unsynced line may count once too often.
        assert path.read_bytes().startswith(before)
        assert ledger.charges == (1 if name == "write" else 2)


def test_a_disk_that_fills_up_within_a_line_leaves_a_readable_ledger(path, monkeypatch):
    ledger, real = create(path), os.write
    before = path.read_bytes()

    def full(descriptor, data):
        if len(data) < 60:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data[:50])

    for broken_cut in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            if broken_cut:
                patch.setattr(os, "ftruncate", failing(errno.EIO))
            with refuses(LedgerError, os.strerror(errno.ENOSPC)):
                ledger.charge(1, 1)
        if broken_cut:
            assert len(path.read_bytes()) > len(before)
        else:
            assert path.read_bytes() == before
        ledger.close()
        ledger = Ledger.open(path)
        assert path.read_bytes() == before and ledger.charges == 0
    ledger.charge(1, 1)
    ledger.close()


def test_short_writes_are_continued(path, monkeypatch):
    real = os.write
    with create(path) as ledger:
        monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:7]))
        ledger.charge(1, 1)
    assert read_ledger(path)[1].charges[0].round_num == 1


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    for take, place in (
        (create, tmp_path / "missing" / "ledger.jsonl"),
        (Ledger.open, tmp_path / "ledger.jsonl"),
        (create, tmp_path),
    ):
        with refuses(LedgerError, place):
            take(place)


def test_creation_on_a_full_disk_leaves_nothing_to_stumble_over(path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing(errno.ENOSPC))
        with refuses(LedgerError, os.strerror(errno.ENOSPC)):
            create(path)
    create(path).close()


def test_two_writers_are_one_too_many(path):
    first = create(path)
    first.charge(1, 1)
    for take in (lambda: Ledger.open(path), lambda: create(path)):
        with refuses(LedgerError, path):
            take()
    read_ledger(path)  # readers need no lock
    first.close()
    with pytest.raises(LedgerError):
        first.charge(1, 2)
    Ledger.open(path).close()
