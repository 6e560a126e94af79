"""Twelve people with six examples each, a model of them, and what is run on it."""

from collections.abc import Mapping

from torch import nn

from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.runs.prepared import start_run
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.tasks.task import Task
from tests.harness.refusals import refuses
from tests.harness.toy_users import person


class Files(Mapping):
    """A mapping that reads a user's file when it is asked, counts that, and may fail to."""

    def __init__(self, users, broken=None):
        self._users, self._broken, self.read = users, broken, 0

    def __getitem__(self, user_id):
        self.read += 1
        if user_id == self._broken:
            raise OSError("a broken disk")
        return self._users[user_id]

    def __contains__(self, user_id):
        return user_id in self._users

    def __iter__(self):
        return iter(self._users)

    def __len__(self):
        return len(self._users)


USERS = {f"u{n:02d}": person(n) for n in range(12)}


def task(**changes):
    given = {
        "name": "t", "module": lambda: nn.Linear(4, 2), "loss": nn.functional.cross_entropy,
        "users": USERS, "public": person(99), "synthetic": True,
    }  # fmt: skip
    return ModuleTask(**{**given, **changes})


def experiment(made, **options):
    options = {"rounds": 2, "cohort": 6.0, "noise_multiplier": 1.0, **options}
    own = FederatedExperiment(name="own", description="", task=lambda experiment: made)
    return own.with_options(options)


def started(folder, made, *, secure=False, **options):
    """A run of a task, or of an experiment, prepared in a folder."""
    own = experiment(made, **options) if isinstance(made, Task) else made
    return start_run(own, "own:x", None, folder, secure=secure)


def accepted(folder, made, **options):
    """Prepare a run and close its folder."""
    prepared = started(folder, made, **options)
    prepared.folder.close()
    return prepared


def refused(folder, made, error=ValueError, *names, **options):
    """Assert that a run is refused, by an error that has the names, before it has a folder."""
    with refuses(error, *names) as caught:
        started(folder, made, **options)
    assert not folder.exists()
    return caught.value
