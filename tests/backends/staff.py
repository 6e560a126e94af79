"""Worker contexts for the tests of the Ray backend, made in the workers from a name alone."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedpriv.backends import SerialBackend
from fedpriv.training.evaluate import WHOLE, Metrics
from fedpriv.training.local.schedule import LocalSgd
from tests.backends.flower import stub_grid

SCHEDULE = LocalSgd(learning_rate=2.0, batch_size=3, epochs=2, max_examples_per_user=6)
ROSTER = tuple(f"user-{number:02d}" for number in range(12))


class Users(stub_grid._Users):
    """Synthetic users of a task of 30 words and 4 tags, with one to eight examples each."""

    def __init__(self):
        super().__init__(stub_grid.TinyTags().data.users)


@dataclass(frozen=True)
class Deeds:
    """What users do to their worker, read from a folder at the moment they do it.

    A worker keeps its context for long, and a dead one remembers nothing: both the plan and the
    list of what was done are files.
    """

    folder: str

    def plan(self, deeds, times=10**6):
        """Set who does what ("kill", "exit", "raise"), and how often in all."""
        for old in Path(self.folder).iterdir():
            old.unlink()
        Path(self.folder, "plan.json").write_text(json.dumps({"deeds": deeds, "times": times}))

    def done(self):
        """Return how often somebody did something."""
        return len(list(Path(self.folder).glob("done-*")))

    def _claims(self, times):
        """Whether one of so many deeds is left; two workers never claim the same one."""
        for number in range(self.done(), times):
            with contextlib.suppress(FileExistsError):
                Path(self.folder, f"done-{number}").touch(exist_ok=False)
                return True
        return False

    def act(self, name):
        """Do what is planned for a name, if anything."""
        plan = json.loads(Path(self.folder, "plan.json").read_text())
        deed = plan["deeds"].get(name)
        if deed is None or not self._claims(plan["times"]):
            return
        if deed == "exit":
            os._exit(3)
        elif deed == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif deed == "raise":
            raise ValueError("a user's own error")


class BadUsers(Users):
    """Users, some of whom do something whenever they are asked for their examples."""

    def __init__(self, deeds):
        super().__init__()
        self._deeds = deeds

    def examples(self, user_id):
        self._deeds.act(user_id)
        return super().examples(user_id)


def trainer(multiplier=None):
    return stub_grid.TinyTags().trainer(SCHEDULE, multiplier or {})


def measure(params, *, public, part=WHOLE, deeds=None):
    """Count whole numbers, so that the parts add up exactly."""
    if deeds is not None:
        deeds.act("evaluate")
    number, of = part
    mine = range(number, 20, of)
    share = sum(i % 3 == 0 for i in mine) / max(len(mine), 1)
    return Metrics.of(len(mine), accuracy=share, loss=float(public))


def open_worker(device, *, multiplier=None, deeds=None, refuse=None):
    """Make a worker context; `refuse` is an error to raise instead."""
    if refuse is not None:
        raise refuse
    assert device in (None, "cpu")
    return SerialBackend(
        trainer=trainer(multiplier),
        data=Users() if deeds is None else BadUsers(deeds),
        measure=functools.partial(measure, deeds=deeds),
    )


params = stub_grid.TinyTags().params


def same(left, right):
    """Whether two partial sums are equal bit for bit."""
    left, right = left.real(), right.real()
    return all(np.array_equal(dense(left[n]), dense(right[n])) for n in right)


def dense(tensor):
    return tensor if isinstance(tensor, np.ndarray) else tensor.to_dense()
