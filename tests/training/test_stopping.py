"""An interrupt that a library drops or disguises still ends the run, and costs no user its data."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from functools import cache

import numpy as np
import pytest
from numba import njit
from torch import nn

from fedpriv import json_lines
from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.mechanisms import Rounded
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.runs.prepared import start_run
from fedpriv.training import stopping
from fedpriv.training.local.module import ArrayExamples, module_params
from fedpriv.training.work import UserTrainer
from tests.harness.refusals import refuses
from tests.harness.threads import Shared
from tests.harness.toys_of_training import CLIP, KEY, Users, asked, contributed, trainer_of, zeros


@pytest.fixture
def default_sigint():
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def installed(default_sigint):
    before = signal.getsignal(signal.SIGTERM)
    stopping.install()
    yield
    stopping.restore(before)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) == before


class Panic(BaseException):
    """As a library in Rust raises one, and no `Exception`."""


def disguised():
    """As compiled code disguises an interrupt: twice a SystemError of which the other is cause."""
    try:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise SystemError("_numba_unpickle returned a result") from error
    except SystemError as error:
        raise SystemError("CPUDispatcher returned a result") from error


def as_context():
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        raise RuntimeError("cleaning up failed") from None


@cache
def compiled():
    """Made by the first test that asks: every process of the tests imports this module."""

    @njit("UniTuple(float64[:],2)(float64[:],int64)", nogil=True)
    def compiled(x, steps):
        total = 0.0
        for step in range(steps):
            total += np.sqrt(step + x[0])
        return x * total, x

    return compiled


def in_compiled_code():
    """A real SIGINT while compiled code runs, which surfaces as a SystemError."""
    run = compiled()
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        run(np.ones(3), 100_000_000)
    finally:
        timer.join()


def dropped():
    """A real SIGINT whose exception is dropped by whoever called the handler."""
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
    except KeyboardInterrupt:
        pass


INTERRUPTS = [disguised, as_context, in_compiled_code, dropped]


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_swallowed_signal_is_raised_again(installed, number, raised):
    stopping.stop_if_asked()  # no signal came yet
    with pytest.raises(raised):
        os.kill(os.getpid(), number)
        for _ in range(1000):
            pass
    with pytest.raises(raised) as again:
        stopping.stop_if_asked()
    if raised is SystemExit:
        assert again.value.code == 128 + signal.SIGTERM


class TestInterruptible:
    @pytest.mark.slow
    @pytest.mark.parametrize("how", INTERRUPTS)
    def test_whatever_became_of_it_an_interrupt_comes_out(self, default_sigint, how):
        with pytest.raises(KeyboardInterrupt), stopping.interruptible(), stopping.interruptible():
            how()
        stopping.stop_if_asked()  # it was delivered, once

    def test_other_errors_are_themselves(self, default_sigint):
        with refuses(ValueError, "own"), stopping.interruptible():
            raise ValueError("own")

    def test_an_earlier_interrupt_that_is_being_handled_is_none_of_ours(self, default_sigint):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            with refuses(ValueError, "own"), stopping.interruptible():
                raise ValueError("own")  # noqa: B904 - its context is what this is about


class Interrupted(UserTrainer):
    """A trainer whose third user is interrupted, and notes who was trained."""

    thread_safe = True

    def __init__(self, how):
        self.how, self.trained = how, []

    def train(self, params, context, examples, key):
        self.trained.append(examples)
        if examples == "u2":
            self.how()
        return {name: np.ones_like(array) for name, array in params.items()}


PARAMS = zeros(weight=3)
USERS = Users({f"u{number}": f"u{number}" for number in range(6)})


class TestSums:
    @pytest.mark.slow
    @pytest.mark.parametrize("how", INTERRUPTS)
    def test_an_interrupted_user_is_no_failed_user(self, default_sigint, how):
        trainer = Interrupted(how)
        with pytest.raises(KeyboardInterrupt), stopping.interruptible():
            contributed(trainer, PARAMS, USERS)
        assert trainer.trained == ["u0", "u1", "u2"]

    @pytest.mark.parametrize("how", [disguised, as_context])
    def test_nor_is_it_where_no_handler_is_installed(self, how):
        trainer = Interrupted(how)
        with pytest.raises(KeyboardInterrupt):
            contributed(trainer, PARAMS, USERS)

    @pytest.mark.parametrize("how", [disguised, as_context])
    def test_nor_on_a_thread(self, how):
        backend = Shared(trainer=Interrupted(how), data=USERS)
        with pytest.raises(KeyboardInterrupt):
            asked(
                backend,
                params=PARAMS,
                bound=Rounded(bound=CLIP),  # of floats no thread shares a sum
                cohort=tuple(USERS),
                key=KEY,
                round_num=1,
                attempt=1,
            )
        backend.close()

    @pytest.mark.slow
    @pytest.mark.parametrize("how", INTERRUPTS)
    @pytest.mark.parametrize("users_at_once", [1, 2])
    def test_nor_of_users_trained_at_once(self, default_sigint, users_at_once, how):
        calls = []

        def loss(outputs, targets):
            calls.append(1)
            if len(calls) == 3:
                how()
            return outputs.square().mean()

        module = nn.Linear(2, 1)
        trainer = trainer_of(module, users_at_once, loss=loss)
        users = dict.fromkeys(USERS, own_of(0))
        with pytest.raises(KeyboardInterrupt), stopping.interruptible():
            contributed(trainer, module_params(module), users)

    def test_a_user_that_exits_or_fails_still_contributes_zero_alone(self, default_sigint):
        for error in (SystemExit(3), SystemError("own"), ValueError("own"), Panic("own")):

            def fail(error=error):
                raise error

            with stopping.interruptible():
                done = contributed(Interrupted(fail), PARAMS, USERS)
            assert (done.num_users, done.num_failed) == (6, 1)

    @pytest.mark.parametrize("error", [SystemExit(3), Panic("own"), ValueError("own")])
    def test_so_does_one_that_is_trained_beside_others(self, default_sigint, error):
        def loss(outputs, targets):
            if targets.sum() != 0:
                raise error
            return outputs.square().mean()

        module = nn.Linear(2, 1)
        users = dict.fromkeys(USERS, own_of(0)) | {"u2": own_of(1)}
        with stopping.interruptible():
            done = contributed(trainer_of(module, 3, loss=loss), module_params(module), users)
        assert done.num_failed == 1


def own_of(target):
    return ArrayExamples(np.ones((1, 2), np.float32), np.full((1, 1), target, np.float32))


@pytest.mark.slow
def test_one_that_came_between_rounds_charges_nothing_more(default_sigint, tiny_corpus, tmp_path):
    experiment = FederatedExperiment(name="t", description="", rounds=4).with_options(
        {"noise_multiplier": 1.0}
    )
    prepared = start_run(experiment, "dp-fedavg-tags", tiny_corpus, tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        prepared.run(on_round=lambda record: dropped())
    assert len(json_lines.read(tmp_path / "run" / "rounds.jsonl")) == 1
    assert verify_run(tmp_path / "run").num_charges == 1


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends signals")
def test_a_real_ctrl_c_at_a_random_moment_ends_the_command(tiny_corpus, tmp_path):
    """A process, a SIGINT, six random moments of the first second of rounds.

    No clock decides: the guards only keep a run that hangs from hanging us.
    """
    rng = random.Random(1)
    program = (
        "import sys; from fedpriv.cli import main; sys.argv = ['fedpriv', *sys.argv[1:]]; main()"
    )
    for number in range(6):
        out = tmp_path / str(number)
        asked = ["run", "adadps-tags", "--corpus", str(tiny_corpus.directory), "--cohort", "30"]
        asked += ["--rounds", "5000", "--noise-multiplier", "1", "-s", "local-epochs=2000"]
        asked += ["-s", "eval-every=5000", "-s", "exact-sum=false", "--out", str(out)]
        started = subprocess.Popen(
            [sys.executable, "-c", program, *asked],
            stderr=subprocess.PIPE,
            text=True,
            # A shell has its background jobs ignore Ctrl-C, and tests may run in one.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        try:
            until = time.monotonic() + 300
            while not (out / "rounds.jsonl").exists() and time.monotonic() < until:
                assert started.poll() is None, started.communicate()[1]
                time.sleep(0.02)
            time.sleep(rng.random())
            started.send_signal(signal.SIGINT)
            said = started.communicate(timeout=300)[1]
        finally:
            started.kill()
            started.wait()
        assert started.returncode == 130
        assert f"--resume {out}" in said and "Traceback" not in said
        assert all(line["num_failed"] == 0 for line in json_lines.read(out / "diagnostics.jsonl"))
        assert verify_run(out).ok
