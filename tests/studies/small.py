"""A small model on eight synthetic users, and studies of it."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.studies.study import Study
from fedpriv.tasks.module_task import ModuleTask
from tests.harness import toy_users


def task(experiment):
    return toy_users.task(
        name="small",
        users=toy_users.users(8, 4),
        test={f"user-{n}": toy_users.examples(50 + n, n) for n in range(6)},
        public=toy_users.examples(99, 30),
    )


def small():
    return FederatedExperiment(
        name="small", description="A small model.", task=task, delta=0.01, rounds=11, eval_every=11
    ).with_options({"target_epsilon": 8.0, "cohort": 4.0})


def broken():
    """Refuses to make its task at seed 1."""

    def refuse(experiment):
        if experiment.seed == 1:
            raise KeyError("no data here")
        return task(experiment)

    return replace(small(), name="broken", task=refuse)


def deadly():
    """Kills its process at seed 1."""

    def die(experiment):
        if experiment.seed == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return task(experiment)

    return replace(small(), name="deadly", task=die)


def stuck(folder):
    """Waits in the third round of seed 1, for as long as there is a file `wait` in a folder."""
    wait = Path(folder) / "wait"

    class Waiting(ModuleTask):
        def evaluate(self, params, **which):
            found = super().evaluate(params, **which)
            while self.seed == 1 and wait.exists():
                (wait.parent / "waiting").touch()
                time.sleep(0.02)
            return found

    def waiting(experiment):
        made = task(experiment)
        made.__class__, made.seed = Waiting, experiment.seed
        return made

    return replace(small(), name="stuck", task=waiting, eval_every=1)


def study():
    return Study(name="small", methods={"small": small()}, epsilons=[2.0, None], seeds=2)


def stuck_study():
    return Study(
        name="stuck",
        methods={"stuck": stuck(os.environ["STUCK_IN"])},
        epsilons=[2.0, 8.0],
        seeds=3,
        options={"rounds": 4},
    )
