"""Nobody but one writer adds to a ledger: no fork, no thread beside it, no file in its place."""

import contextlib
import os
import shutil
import threading

import pytest

from fedpriv.mechanisms import Clip, Gaussian
from fedpriv.privacy.ledger.chain import LedgerError
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.ledger.state import read_ledger
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import Plan
from fedpriv.privacy.sampling import Everybody

PLAN = Plan(
    mechanism=Mechanism(
        sampler=Everybody(num_users=10),
        bound=Clip(l2_clip_norm=1.0),
        privatizer=Gaussian(noise_multiplier=2.0),
    ),
    num_rounds=30,
    delta=1e-3,
)


@pytest.fixture
def ledger(tmp_path):
    with Ledger.create(tmp_path / "ledger.jsonl", PLAN, mode="simulation") as made:
        made.charge(1, 1)
        yield made


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_of_a_fork_one_goes_on(ledger):
    child = os.fork()
    if not child:
        try:
            ledger.charge(2, 1)
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(LedgerError):
        ledger.charge(2, 1)
    assert len(read_ledger(ledger.path)[1].charges) == 2


def test_a_copy_in_its_place_takes_no_line(ledger, tmp_path):
    shutil.copy(ledger.path, tmp_path / "copy")
    os.replace(tmp_path / "copy", ledger.path)
    with pytest.raises(LedgerError):
        ledger.charge(2, 1)
    assert len(read_ledger(ledger.path)[1].charges) == 1


def test_of_two_threads_one_has_a_charge(ledger):
    """Thirty times two threads ask for the same attempt at once."""
    for number in range(2, 31):
        start, charged = threading.Barrier(2), []

        def charge(number=number, start=start, charged=charged):
            start.wait()
            with contextlib.suppress(LedgerError):
                charged.append(ledger.charge(number, 1))

        threads = [threading.Thread(target=charge) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(charged) == 1
    assert len(read_ledger(ledger.path)[1].charges) == 30
