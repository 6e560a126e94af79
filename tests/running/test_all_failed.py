"""A simulation whose drawn users all fail ends with the first error, on whatever carries it."""

import logging
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedpriv import json_lines
from fedpriv.backends import SerialBackend
from fedpriv.backends.flower.registry import Registry
from fedpriv.backends.flower.strategy import GridSettings, connect
from fedpriv.experiments.user_code import user_code
from fedpriv.rng import Key
from fedpriv.runs.attendance import FAILED_IN_A_ROW, AllUsersFailedError, Attendance
from fedpriv.runs.backends import on_ray
from fedpriv.runs.prepared import resume_run, start_run
from fedpriv.sums import PartialSum
from fedpriv.training.failures import contributes_zero, counted_failures
from tests.backends.flower import stub_grid as stub
from tests.harness.command_line import fedpriv
from tests.harness.kills import Killed, after_round
from tests.harness.refusals import refuses
from tests.harness.tag_runs import charged, start
from tests.harness.threads import Shared
from tests.harness.toy_users import toy_experiment
from tests.running.methods.test_runs import started

SECRET = "label-of-theirs"
SETTINGS = GridSettings(allow_unauthenticated_nodes=True)


class Odd:
    """A population of which some have labels that cannot be read."""

    def __init__(self, data, odd):
        self._data, self._odd = data, set(odd)

    def num_examples(self, user_id):
        return self._data.num_examples(user_id)

    def examples(self, user_id):
        if user_id in self._odd:
            raise ValueError(f"no label is {SECRET}")
        return self._data.examples(user_id)


class OddTask:
    def __init__(self, task, odd):
        self._task, self.data = task, Odd(task.data, odd)

    def __getattr__(self, name):
        return getattr(self._task, name)


def backend_of(name, odd=lambda roster: roster, settings=SETTINGS, silent=()):
    """Return what makes a backend on which some of the roster are odd, and some nodes away."""

    def make(experiment, made):
        task = OddTask(made.task, odd(made.task.roster))
        if name == "flower":
            grid = stub.StubGrid(stub.shards(task, 3, trainer=made.trainer))
            backend = connect(grid, made.task.roster, settings)
            grid.silent = set(silent)
            return backend
        given = {"trainer": made.trainer, "data": task.data, "measure": made.task.evaluate}
        if name == "serial":
            return SerialBackend(**given, threads=1)
        return Shared(**given)

    return make


named_backends = pytest.mark.parametrize("backend", ["serial", "threads", "flower"])


@named_backends
def test_the_run_ends_with_the_first_error_before_more_is_charged(tiny_corpus, tmp_path, backend):
    out = tmp_path / "run"
    prepared = start(tiny_corpus, out, make_backend=backend_of(backend))
    with pytest.raises(AllUsersFailedError) as caught:
        prepared.run()
    said = str(caught.value)
    assert "ValueError" in said and "test_all_failed.py" in said
    assert len(charged(out)) == 1 and not json_lines.read(out / "rounds.jsonl")
    # On a node of Flower's there may be people's own data: no value leaves it.
    assert (SECRET in said) is (backend != "flower"), said


@pytest.mark.slow
def test_a_resumed_run_ends_so_too_and_goes_on_once_it_is_mended(tiny_corpus, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(AllUsersFailedError):
        start(tiny_corpus, out, make_backend=backend_of("serial")).run()
    with pytest.raises(AllUsersFailedError):
        resume_run(out, make_backend=backend_of("serial")).run()
    assert len(charged(out)) == 2
    assert resume_run(out).run()["rounds"] >= 1


@pytest.mark.slow
def test_nodes_that_are_away_end_no_run_though_another_failed(tiny_corpus, tmp_path):
    flower = backend_of("flower", settings=GridSettings(round_deadline=0.2), silent={101, 102})
    prepared = start(tiny_corpus, tmp_path / "run", make_backend=flower, seed=1)
    assert prepared.run()["rounds"] == 6


def test_a_resumed_run_has_learnt(tiny_corpus, tmp_path):
    with pytest.raises(Killed):
        start(tiny_corpus, tmp_path / "run").run(after_round(1))
    resumed = resume_run(tmp_path / "run", make_backend=backend_of("serial"))
    with pytest.raises(AllUsersFailedError) as caught:
        resumed.run()
    assert not re.search(r"\b2\b", str(caught.value).partition(":")[0])


@pytest.mark.slow
@named_backends
def test_a_secure_run_neither_ends_nor_says_it(tiny_corpus, tmp_path, backend, caplog):
    """Who failed is private there, how many, and of what."""
    caplog.set_level(logging.DEBUG)
    out = tmp_path / "run"
    summary = start(tiny_corpus, out, secure=True, make_backend=backend_of(backend)).run()
    assert summary["rounds"] == 6 and summary["first_failure"] is None
    assert not json_lines.read(out / "diagnostics.jsonl")
    assert not any(told in caplog.text for told in ("contributes", "drawn", "noise"))
    for text in (caplog.text, *(file.read_text() for file in out.glob("*.json*"))):
        assert "ValueError" not in text and SECRET not in text


@pytest.mark.slow
@named_backends
def test_more_than_half_is_said_at_once_with_the_error(tiny_corpus, tmp_path, backend, caplog):
    def most(roster):
        return roster[: int(0.9 * len(roster))]

    made = backend_of(backend, most)
    prepared = start(tiny_corpus, tmp_path / "run", cohort=60.0, make_backend=made)
    seen = []
    prepared.run(on_round=lambda record: seen.append(len(warned(caplog))), ends_if_all_fail=False)
    assert seen[0] == 1 and len(warned(caplog)) == 1
    assert "round 1: " in warned(caplog)[0] and "ValueError" in warned(caplog)[0]


def warned(caplog):
    return [r.getMessage() for r in caplog.records if "mostly noise" in r.getMessage()]


@pytest.mark.slow
def test_an_empty_cohort_is_no_failure(tiny_corpus, tmp_path):
    made = backend_of("serial")
    run = start(tiny_corpus, tmp_path / "run", cohort=0.001, make_backend=made)
    assert run.run()["rounds"] == 6


def numbered_from_one():
    """Users whose labels are 1 and 2, which the model takes for numbers from 0."""
    users = {f"u{n}": (np.ones((3, 4), np.float32), np.full(3, 2)) for n in range(24)}
    return toy_experiment({"users": users, "public": None}, cohort=20.0)


NAME = f"{__name__}:numbered_from_one"


@pytest.mark.slow
def test_the_command_ends_with_an_error_and_that_traceback(tmp_path):
    done = fedpriv("run", NAME, "--out", tmp_path / "run")
    assert done.exit_code != 0
    assert "IndexError: Target 2 is out of bounds" in done.stderr
    assert "Traceback" in done.stderr and "functional.py" in done.stderr
    assert len(charged(tmp_path / "run")) == 1


@pytest.mark.slow
def test_users_of_a_program_may_fail_in_a_pass_but_not_all_in_every_pass(tiny_corpus, tmp_path):
    one, all_of_them = backend_of("serial", lambda roster: roster[1:2]), backend_of("serial")
    started("bolt-on-tags", tiny_corpus, tmp_path / "a", one).run()
    with pytest.raises(AllUsersFailedError):
        started("bolt-on-tags", tiny_corpus, tmp_path / "b", all_of_them).run()


@pytest.mark.slow
@pytest.mark.ray
def test_on_workers_too(ray, tmp_path):
    ray.share = replace(ray.share, num_workers=2)
    prepared = start_run(
        numbered_from_one(), NAME, None, tmp_path / "run", make_backend=on_ray(ray, NAME, None)
    )
    with refuses(AllUsersFailedError, "IndexError", "Target 2"):
        prepared.run()


def test_one_line_is_logged_for_many_failures_of_a_kind(caplog):
    with caplog.at_level("WARNING", "fedpriv"), counted_failures() as failures:
        for error in (ValueError("a"), ValueError("b"), KeyError("c"), ValueError("d")):
            contributes_zero(error)
    assert failures.count == 4
    assert caplog.messages == [f"a user contributes zero: {k}Error" for k in ("Value", "Key")]


def test_a_small_cohort_that_fails_by_chance_does_not_end_a_run_that_has_learnt():
    attendance, failed = Attendance(), {"total": {}, "first_error": "ValueError: outside"}

    def round_of(cohort_size, num_failed):
        attendance.begin()
        attendance.note(
            cohort_size, PartialSum(num_users=cohort_size, num_failed=num_failed, **failed)
        )
        attendance.end_if_all_failed(1, "user")

    round_of(5, 4)
    for _ in range(FAILED_IN_A_ROW - 1):
        round_of(1, 1)
    round_of(3, 2)
    attendance.begin()
    for _ in range(FAILED_IN_A_ROW):  # passes of one answer
        attendance.note(1, PartialSum(num_users=1, num_failed=1, **failed))
    attendance.end_if_all_failed(1, "user")
    round_of(3, 2)
    attendance.begin()
    attendance.note(FAILED_IN_A_ROW, PartialSum(total={}, num_users=20, num_failed=20))
    attendance.end_if_all_failed(1, "user")  # who are away
    round_of(FAILED_IN_A_ROW - 1, FAILED_IN_A_ROW - 1)
    with pytest.raises(AllUsersFailedError):
        round_of(1, 1)


@pytest.mark.parametrize(
    ("has_learnt", "cohort_size", "num_failed", "ends"),
    [(False, 10, 6, True), (False, 10, 5, False), (False, 9, 8, False), (True, 10, 9, False)],
)
def test_most_of_the_first_ten_end_a_run_that_has_learnt_nothing(
    has_learnt, cohort_size, num_failed, ends
):
    attendance = Attendance(has_learnt=has_learnt)
    for known in ({"absent": "4 are away"}, {}):  # who are away may come back
        attendance.begin()
        made = PartialSum(
            total={}, num_users=10, num_failed=num_failed, first_error="IndexError: 7", **known
        )
        attendance.note(cohort_size, made)
        attendance.has_learnt = has_learnt
        if ends and not known:
            with refuses(AllUsersFailedError, num_failed, cohort_size, "IndexError: 7"):
                attendance.end_if_all_failed(1, "user")
        else:
            attendance.end_if_all_failed(1, "user")
            attendance.has_learnt = has_learnt


def test_labels_that_most_users_have_and_no_output_does_end_the_run_at_once(tmp_path):
    users = {f"u{n}": (np.ones((3, 4), np.float32), np.full(3, n % 3 + 1)) for n in range(24)}
    made = toy_experiment({"users": users, "public": None}, cohort=24.0)
    with refuses(AllUsersFailedError, "IndexError", "24", "numbered from 0"):
        start_run(made, None, None, tmp_path / "run").run()
    assert len(charged(tmp_path / "run")) == 1


def test_labels_that_are_no_classes_are_named_as_the_cause():
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
    attendance = Attendance()
    attendance.begin()
    attendance.note(4, PartialSum(total={}, num_users=4, num_failed=4, first_error=error))
    if error is None:
        attendance.end_if_all_failed(3, "user")
    else:
        with refuses(AllUsersFailedError, error):
            attendance.end_if_all_failed(3, "user")


@pytest.mark.parametrize("secure", [False, True])
def test_users_whom_no_node_hosts_are_said_to_be_that(secure, caplog):
    """They raise no error, so none is looked for; a secure run says nothing of either."""
    whole = stub.Federation(num_users=12, num_nodes=3)
    known = {user: node for user, node in whole.backend.registry.node_of.items() if node != 102}
    backend = replace(whole.backend, registry=Registry(node_of=known), settings=SETTINGS)
    key = Key.secure() if secure else Key.simulation(1)
    found = whole.sum(backend=backend, key=key)
    assert found.num_failed == 4 and found.first_error is None
    assert found.absent == (None if secure else "4 users are hosted by no node")
    seen = Attendance()
    seen.begin()
    seen.note(6, replace(found, num_users=6))
    seen.warn_once(1, "user")
    [said] = [record.message for record in caplog.records if "failed" in record.message]
    assert ("hosted by no node" in said) != secure and "first error" not in said
