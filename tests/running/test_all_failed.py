"""A simulation whose drawn users all fail ends with the first error, on whatever carries it."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv import json_lines
from fedpriv.backends import SerialBackend
from fedpriv.backends.flower.registry import Registry
from fedpriv.backends.flower.strategy import GridSettings, connect
from fedpriv.backends.in_process import ThreadBackend
from fedpriv.cli import main
from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.experiments.user_code import user_code
from fedpriv.privacy.ledger.state import read_ledger
from fedpriv.rng import Key
from fedpriv.runs.participation import FAILED_IN_A_ROW, AllUsersFailedError, Participation
from fedpriv.runs.prepared import resume_run, start_run
from fedpriv.sums import PartialSum
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.training.failures import contributes_zero, counted_failures
from fedpriv.training.local.module import ArrayExamples
from tests.backends.flower import stub_grid as stub
from tests.harness.tag_runs import start

SECRET = 4711


class Odd:
    """A population of which some have labels that no model knows."""

    def __init__(self, data, odd):
        self._data, self._odd = data, set(odd)

    def num_examples(self, user_id):
        return self._data.num_examples(user_id)

    def examples(self, user_id):
        found = self._data.examples(user_id)
        if user_id not in self._odd:
            return found
        if not len(found):  # who has nothing to train on has nothing to fail at
            raise KeyError(user_id)
        return replace(found, labels=np.full_like(found.labels, SECRET))


class OddTask:
    def __init__(self, task, odd):
        self._task, self.data = task, Odd(task.data, odd)

    def __getattr__(self, name):
        return getattr(self._task, name)


def backends(odd=lambda roster: roster):
    def serial(experiment, made):
        data = Odd(made.task.data, odd(made.task.roster))
        return SerialBackend(trainer=made.trainer, data=data, measure=made.task.evaluate)

    def threads(experiment, made):
        data = Odd(made.task.data, odd(made.task.roster))
        return ThreadBackend(
            trainer=made.trainer, data=data, measure=made.task.evaluate, num_workers=2,
            max_examples=50,
        )  # fmt: skip

    def flower(experiment, made):
        task = OddTask(made.task, odd(made.task.roster))
        grid = stub.StubGrid(stub.shards(task, 3, trainer=made.trainer))
        return connect(grid, made.task.roster)

    return {"serial": serial, "threads": threads, "flower": flower}


def charges(out):
    return len(read_ledger(out / "ledger.jsonl")[1].charges)


@pytest.mark.parametrize("backend", ["serial", "threads", "flower"])
def test_the_run_ends_with_the_first_error_before_more_is_charged(tiny_corpus, tmp_path, backend):
    """Red before: six rounds of noise, and the summary of a finished run."""
    out = tmp_path / "run"
    prepared = start(tiny_corpus, out, make_backend=backends()[backend])
    with pytest.raises(AllUsersFailedError) as caught:
        prepared.run()
    said = str(caught.value)
    assert "round 1" in said and "ValueError" in said and "softmax.py" in said
    assert charges(out) == 1 and not json_lines.read(out / "rounds.jsonl")
    # On a node of Flower's there may be people's own data: no value leaves it.
    assert ("outside" in said) is (backend != "flower"), said


@pytest.mark.slow
def test_a_resumed_run_ends_so_too_and_goes_on_once_it_is_mended(tiny_corpus, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(AllUsersFailedError):
        start(tiny_corpus, out, make_backend=backends()["serial"]).run()
    with pytest.raises(AllUsersFailedError):
        resume_run(out, make_backend=backends()["serial"]).run()
    assert charges(out) == 2
    assert resume_run(out).run()["rounds"] >= 1


@pytest.mark.slow
def test_nodes_that_are_away_end_no_run_though_another_failed(tiny_corpus, tmp_path):
    """Red when one node's crash, in a round that the others missed, ended a federation."""

    def flower(experiment, made):
        task = OddTask(made.task, made.task.roster)
        grid = stub.StubGrid(stub.shards(task, 3, trainer=made.trainer))
        backend = connect(grid, made.task.roster, GridSettings(round_deadline=0.2))
        grid.silent = {101, 102}
        return backend

    prepared = start(tiny_corpus, tmp_path / "run", make_backend=flower)
    assert prepared.run()["rounds"] == 6


def test_a_resumed_run_has_learnt(tiny_corpus, tmp_path):
    """Red when the one odd user who was drawn first after a resume ended the run."""

    def stop(record):
        raise InterruptedError

    with pytest.raises(InterruptedError):
        start(tiny_corpus, tmp_path / "run").run(stop)
    resumed = resume_run(tmp_path / "run", make_backend=backends()["serial"])
    with pytest.raises(AllUsersFailedError) as caught:
        resumed.run()
    assert not str(caught.value).startswith("round 2:")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["serial", "threads", "flower"])
def test_a_secure_run_neither_ends_nor_says_it(tiny_corpus, tmp_path, backend, caplog):
    """Who failed is private there, how many, and of what."""
    caplog.set_level(logging.DEBUG)
    out = tmp_path / "run"
    odd: dict[str, Any] = backends()
    if backend == "flower":
        settings = GridSettings(allow_unauthenticated_nodes=True)

        def flower(experiment, made):
            grid = stub.StubGrid(
                stub.shards(OddTask(made.task, made.task.roster), 3, trainer=made.trainer)
            )
            return connect(grid, made.task.roster, settings)

        odd["flower"] = flower
    prepared = start(tiny_corpus, out, secure=True, make_backend=odd[backend])
    summary = prepared.run()
    assert summary["rounds"] == 6 and summary["first_failure"] is None
    assert not json_lines.read(out / "diagnostics.jsonl")
    assert not any(told in caplog.text for told in ("contributes", "drawn", "noise"))
    for text in (caplog.text, *(file.read_text() for file in out.glob("*.json*"))):
        assert "ValueError" not in text and "outside the model" not in text


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["serial", "threads", "flower"])
def test_more_than_half_is_said_at_once_with_the_error(tiny_corpus, tmp_path, backend, caplog):
    def most(roster):
        return roster[: int(0.9 * len(roster))]

    prepared = start(
        tiny_corpus, tmp_path / "run", cohort=60.0, make_backend=backends(most)[backend]
    )
    seen = []
    prepared.run(on_round=lambda record: seen.append(len(warned(caplog))))
    assert seen[0] == 1 and len(warned(caplog)) == 1
    assert "round 1: " in warned(caplog)[0] and "ValueError" in warned(caplog)[0]


def warned(caplog):
    return [r.getMessage() for r in caplog.records if "mostly noise" in r.getMessage()]


@pytest.mark.slow
def test_an_empty_cohort_is_no_failure(tiny_corpus, tmp_path):
    summary = start(
        tiny_corpus, tmp_path / "run", cohort=0.001, make_backend=backends()["serial"]
    ).run()
    assert summary["rounds"] == 6


def experiment(labels):
    def task(experiment, corpus):
        users = {
            f"u{n}": ArrayExamples(np.ones((3, 4), np.float32), np.full(3, label))
            for n, label in enumerate(labels)
        }
        return ModuleTask(
            name="numbered from one", module=lambda: nn.Linear(4, 2), users=users, synthetic=True,
            loss=nn.functional.cross_entropy,
        )  # fmt: skip

    return FederatedExperiment(
        name="own", description="", task=task, delta=0.01, rounds=3
    ).with_options({"cohort": 20.0, "noise_multiplier": 1.0})


@pytest.mark.slow
def test_the_command_ends_with_an_error_and_that_traceback(tmp_path, monkeypatch, capfd):
    """Red before: 65 equal warnings, the whole ε spent, and exit status 0."""
    name, out = "tests.running.test_all_failed:numbered_from_one", tmp_path / "run"
    monkeypatch.setattr(sys, "argv", ["fedpriv", "run", name, "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capfd.readouterr().err
    assert ended.value.code not in (None, 0)
    assert "IndexError: Target 2 is out of bounds" in said
    assert "Traceback" in said and "functional.py" in said
    assert charges(out) == 1


@pytest.mark.slow
def test_users_of_a_program_may_fail_in_a_pass_but_not_all_in_every_pass(tiny_corpus, tmp_path):
    from tests.running.methods.test_runs import play, started

    def backend(odd):
        return lambda experiment, made: SerialBackend(
            trainer=made.trainer,
            data=Odd(made.task.data, odd(made.task.roster)),
            measure=made.task.evaluate,
        )

    play(started("bolt-on-tags", tiny_corpus, tmp_path / "a", backend(lambda r: r[1:2])))
    with pytest.raises(AllUsersFailedError):
        play(started("bolt-on-tags", tiny_corpus, tmp_path / "b", backend(lambda r: r)))


@pytest.mark.slow
@pytest.mark.ray
def test_on_workers_too(ray, tmp_path, monkeypatch):
    from fedpriv.runs.backends import on_ray

    name = "tests.running.test_all_failed:numbered_from_one"
    ray.share = replace(ray.share, num_workers=2)
    prepared = start_run(
        numbered_from_one(), name, None, tmp_path / "run", make_backend=on_ray(ray, name, None)
    )
    with pytest.raises(AllUsersFailedError, match=r"(?s)round 1.*IndexError: Target 2 is out of"):
        prepared.run()


def numbered_from_one():
    return experiment([2] * 24)


def test_one_line_is_logged_for_many_failures_of_a_kind(caplog):
    """Red when hundreds of equal lines buried the error."""
    with caplog.at_level("WARNING", "fedpriv"), counted_failures() as failures:
        for error in (ValueError("a"), ValueError("b"), KeyError("c"), ValueError("d")):
            contributes_zero(error)
    assert failures.count == 4
    assert caplog.messages == [f"a user contributes zero: {k}Error" for k in ("Value", "Key")]


def test_a_small_cohort_that_fails_by_chance_does_not_end_a_run_that_has_learnt():
    """Red when the one odd user of a roster, drawn alone, ended a run of hundreds of rounds."""
    participation, failed = Participation(), {"total": {}, "first_error": "ValueError: outside"}

    def round_of(cohort_size, num_failed):
        participation.begin()
        participation.note(
            cohort_size, PartialSum(num_users=cohort_size, num_failed=num_failed, **failed)
        )
        participation.end_if_all_failed(1, "user")

    round_of(5, 4)
    for _ in range(FAILED_IN_A_ROW - 1):
        round_of(1, 1)
    round_of(3, 2)
    participation.begin()
    for _ in range(FAILED_IN_A_ROW):  # passes of one answer
        participation.note(1, PartialSum(num_users=1, num_failed=1, **failed))
    participation.end_if_all_failed(1, "user")
    round_of(3, 2)
    participation.begin()
    participation.note(FAILED_IN_A_ROW, PartialSum(total={}, num_users=20, num_failed=20))
    participation.end_if_all_failed(1, "user")  # who are away
    round_of(FAILED_IN_A_ROW - 1, FAILED_IN_A_ROW - 1)
    with pytest.raises(AllUsersFailedError):
        round_of(1, 1)


def test_labels_that_are_no_classes_are_named_as_the_cause():
    """Red when the message advised a synthetic batch, or said only where an index was used."""
    with pytest.raises(IndexError) as caught:
        torch.nn.functional.cross_entropy(torch.zeros(1, 2), torch.tensor([2]))
    with pytest.raises(IndexError), user_code("while the task was tried"):
        raise caught.value
    assert "numbered from 0" in " ".join(caught.value.__notes__)
    with counted_failures() as failures:
        for _ in range(3):
            contributes_zero(caught.value)
    assert failures.count == 3 and "numbered from 0" in (failures.text or "").splitlines()[0]


@pytest.mark.parametrize("error", [None, "ValueError: outside"])
def test_users_who_are_away_do_not_end_a_run(error):
    """Red when a federation whose nodes were killed for one round ended, though they came back."""
    participation = Participation()
    participation.begin()
    participation.note(4, PartialSum(total={}, num_users=4, num_failed=4, first_error=error))
    if error is None:
        participation.end_if_all_failed(3, "user")
    else:
        with pytest.raises(AllUsersFailedError, match="outside"):
            participation.end_if_all_failed(3, "user")


@pytest.mark.parametrize("secure", [False, True])
def test_users_whom_no_node_hosts_are_said_to_be_that(secure, caplog):
    """They raise no error, so none is looked for; a secure run says nothing of either."""
    whole = stub.Federation(num_users=12, num_nodes=3)
    settings = GridSettings(allow_unauthenticated_nodes=True)
    known = {user: node for user, node in whole.backend.registry.node_of.items() if node != 102}
    backend = replace(whole.backend, registry=Registry(node_of=known), settings=settings)
    key = Key.secure() if secure else Key.simulation(1)
    found = whole.sum(backend=backend, key=key)
    assert found.num_failed == 4 and found.first_error is None
    assert found.absent == (None if secure else "4 users are hosted by no node")
    seen = Participation()
    seen.begin()
    seen.note(6, replace(found, num_users=6))
    seen.warn_once(1, "user")
    [said] = [record.message for record in caplog.records if "failed" in record.message]
    assert ("hosted by no node" in said) != secure and "first error" not in said
