"""A signal that a library swallows is heard before the next round."""

import os
import signal

import pytest

from fedpriv.backends import stopping


@pytest.fixture
def installed():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stopping.install()
    yield
    stopping.restore(before[1])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before[0])
    assert signal.getsignal(signal.SIGTERM) == before[1]


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_swallowed_signal_is_raised_again(installed, number, raised):
    stopping.stop_if_asked()  # nobody asked yet
    with pytest.raises(raised):
        os.kill(os.getpid(), number)
        for _ in range(1000):
            pass
    with pytest.raises(raised) as again:
        stopping.stop_if_asked()
    if raised is SystemExit:
        assert again.value.code == 128 + signal.SIGTERM


def test_what_others_answer_is_left_to_them():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as for a command in the background
    try:
        stopping.install()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        stopping.restore(before[1])
        signal.signal(signal.SIGINT, before[0])
