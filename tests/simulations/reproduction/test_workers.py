"""Worker processes: what they inherit, how they fail, and that none stays behind."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fedpriv.studies import pool
from simulations.reproduction import runs
from simulations.reproduction.runs import Run, perform, performed
from tests.harness.refusals import refuses
from tests.harness.waiting import wait_until
from tests.simulations.reproduction.tiny_tables import done_for, made, table

ROOT = Path(__file__).parents[3]


def run(seed, happens=lambda: None):
    """A run in which something happens when its data are opened."""
    plain = made()

    def task(experiment, corpus):
        happens()
        return plain.task(experiment, corpus)

    return Run(experiment=replace(plain, task=task), split="test", seed=seed, reduced=False)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def stuck(path):
    """Return something that never ends, once it has written its process's id down."""

    def happens():
        part = path.with_suffix(".part")
        part.write_text(str(os.getpid()), "utf-8")
        part.rename(path)
        while True:
            time.sleep(60)

    return happens


def after(path, happens):
    """Return something that happens only once the file is there."""

    def wait():
        wait_until(path.exists)
        happens()

    return wait


def is_alive(path):
    """Whether the process whose id is in a file still runs; one that nobody reaped does not."""
    stat = Path("/proc", path.read_text("utf-8"), "stat")
    try:
        return stat.read_text("utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def refuse():
    raise ValueError("nothing is right")


def break_off():
    raise KeyError("nothing is there")


@pytest.mark.slow
def test_two_processes_give_what_one_gives():
    one, two = (done_for(table(), processes=number) for number in (1, 2))
    for line in (*one.values(), *two.values()):
        del line["seconds"]
    assert one == two


@pytest.mark.slow
def test_workers_are_kept_from_run_to_run(tmp_path):
    def note():
        with (tmp_path / "pids").open("a") as out:
            out.write(f"{os.getpid()}\n")

    rows = list(performed([run(seed, note) for seed in range(6)], 2))
    pids = (tmp_path / "pids").read_text("utf-8").split()
    assert sorted(row["seed"] for row in rows) == list(range(6))
    assert len(pids) == 6 and 1 <= len(set(pids)) <= 2
    assert str(os.getpid()) not in pids


@pytest.mark.parametrize("processes", [1, 2])
class TestErrors:
    def test_what_a_run_refuses_is_refused_here_with_the_run(self, processes):
        with refuses(ValueError, "nothing is right", "seed 4"):
            list(performed([run(4, refuse)], processes))

    def test_what_breaks_in_a_run_breaks_here_with_the_run(self, processes):
        with refuses(RuntimeError, "nothing is there", "seed 4"):
            list(performed([run(4, break_off)], processes))


def test_a_workers_traceback_comes_along():
    with pytest.raises(RuntimeError) as raised:
        list(performed([run(0, break_off)], 2))
    assert "in break_off" in "".join(raised.value.__notes__)


class TestDeath:
    def test_it_is_an_error_that_names_the_run(self):
        with refuses(ChildProcessError, "seed 4", "SIGKILL"):
            list(performed([run(4, die)], 2))

    def test_it_is_noticed_while_others_work_on_who_are_then_ended(self, tmp_path):
        other = tmp_path / "other"
        todo = [run(0, stuck(other)), run(1, after(other, die))]
        with refuses(ChildProcessError, "seed 1"):
            list(performed(todo, 2))
        assert not is_alive(other)

    @pytest.mark.slow
    def test_a_row_that_ended_beside_a_death_is_kept(self, tmp_path, monkeypatch):
        """Both answers lie there when they are looked at; the dead worker's comes first."""
        pid, ended, answered = tmp_path / "pid", tmp_path / "ended", tmp_path / "answered"
        asked = pool._next

        def asking(pipe):
            if ended.exists():  # whoever asks for more has answered
                answered.touch()
            return asked(pipe)

        def noted(run, device):
            row = perform(run, device)
            if run.seed == 2:
                ended.touch()
            return row

        def last():
            pid.write_text(str(os.getpid()), "utf-8")
            wait_until(answered.exists)
            die()

        monkeypatch.setattr(pool, "_next", asking)
        monkeypatch.setattr(runs, "perform", noted)
        rows = performed([run(1, last), run(0), run(2)], 2)
        assert next(rows)["seed"] == 0  # and nobody looks while its worker does seed 2
        wait_until(lambda: answered.exists() and not is_alive(pid))
        assert next(rows)["seed"] == 2
        with refuses(ChildProcessError, "seed 1"):
            next(rows)


@pytest.mark.slow
def test_closing_ends_them_in_the_middle_of_a_run(tmp_path):
    other = tmp_path / "other"
    rows = performed([run(0, stuck(other)), run(1)], 2)
    assert next(rows)["seed"] == 1
    wait_until(other.exists)
    rows.close()
    assert not is_alive(other)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "everyone"),
    [
        (signal.SIGINT, True),
        pytest.param(signal.SIGINT, False, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, False, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, False, marks=pytest.mark.slow),
    ],
    ids=["ctrl-c", "interrupt", "term", "kill"],
)
def test_nothing_is_left_of_a_command_that_is_ended(tmp_path, number, everyone):
    code = f"""
import pathlib, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
sys.path.insert(0, {str(ROOT)!r})
from tests.simulations.reproduction import test_workers as these
here = pathlib.Path({str(tmp_path)!r})
todo = [these.run(seed, these.stuck(here / str(seed))) for seed in range(2)]
these.runs.complete(todo, {{}}, processes=2)
"""
    command = subprocess.Popen(
        [sys.executable, "-c", code], start_new_session=True, stderr=subprocess.PIPE
    )
    files = [tmp_path / str(seed) for seed in range(2)]
    try:
        wait_until(lambda: all(file.exists() for file in files) or command.poll() is not None)
        assert command.poll() is None, command.stderr.read()
        (os.killpg if everyone else os.kill)(command.pid, number)
        said = command.communicate(timeout=900)[1].decode()
        wait_until(lambda: not any(map(is_alive, files)))
    finally:
        command.kill()
        command.wait()
    # Workers say nothing of it: one traceback, the command's own.
    assert said.count("KeyboardInterrupt") == (1 if number == signal.SIGINT else 0)
