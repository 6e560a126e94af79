"""One oracle of tasks and backends: whoever trains whom, every sum is that of this process."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

from tests.harness.combinations import each_once
from tests.oracles import sums

NODES = {
    "flower, one node": sums.OnNodes(1),
    "flower, several users a node": sums.OnNodes(5),
    "flower, two shards on seven nodes": sums.OnNodes(7, shards=2),
    "flower, the last answers first": sums.OnNodes(5, backwards=True),
    "flower, one at a time": sums.OnNodes(3, settings={"max_in_flight": 1}),
    "flower, one user a node": sums.OnNodes(12),
}
THREADS = {f"{number} threads": sums.OnThreads(number) for number in (2, 4)}
SHARED = ("tags", "pairs")


@functools.cache
def expected(name):
    asked = sums.TASKS[name]()
    return sums.answers(sums.serial(asked), asked)


def length(tensors):
    return np.sqrt(sum(float(np.sum(array.astype(float) ** 2)) for array in tensors.values()))


def tensors_of(answer):
    return {name: a for name, a in answer.items() if name not in ("granularity", "num_failed")}


def real(answer):
    """A sum in units of the updates."""
    scale = float(answer["granularity"]) or 1.0
    return {name: array * scale for name, array in tensors_of(answer).items()}


def check(found, name, questions=sums.QUESTIONS, floats=sums.FLOATS):
    """Whole numbers, and floats that add without rounding, to the bit; other floats nearly."""
    wanted = expected(name)
    assert set(found) >= set(questions)
    for question, answer in found.items():
        assert set(answer) == set(wanted[question])
        for part, array in answer.items():
            same = wanted[question][part]
            assert array.dtype.kind == same.dtype.kind and array.shape == same.shape
            if question in floats:
                apart = np.linalg.norm(array - same)
                assert apart <= 1e-6 * length(tensors_of(wanted[question])), (question, part)
            else:
                np.testing.assert_array_equal(array, same, err_msg=f"{question} {part}")


@pytest.mark.parametrize("name", sums.TASKS)
def test_what_the_oracle_answers_is_not_degenerate(name):
    answers = expected(name)
    clipped = real(answers["clip"])
    assert {part: array.shape for part, array in clipped.items()} == {
        part: array.shape for part, array in sums.TASKS[name]().params.items()
    }
    for question in sums.QUESTIONS:
        moved = [bool(array.any()) for array in real(answers[question]).values()]
        assert not any(moved) if question == "nobody" else all(moved), question
    other = real(answers["other draws"])
    assert length({part: other[part] - clipped[part] for part in other}) > 1e-3 * length(clipped)
    assert all(answers["clip"][part].dtype.kind == "i" for part in clipped)
    assert answers["clip"]["num_failed"] == answers["nobody"]["num_failed"] == 0


@pytest.mark.parametrize("name", sums.TASKS)
def test_a_user_who_fails_contributes_zero_alone(name):
    answers = expected(name)
    with_nan, without = answers["with a user of NaN"], answers["clip"]
    assert with_nan["num_failed"] == 1
    for part, array in real(without).items():
        np.testing.assert_array_equal(real(with_nan)[part], array)


@pytest.mark.parametrize("name", sums.TASKS)
def test_a_user_of_huge_inputs_moves_the_sum_by_its_bound_at_most(name):
    everybody, good = (real(expected(name)[of]) for of in ("everybody", "clip"))
    moved = length({part: everybody[part] - good[part] for part in good})
    assert moved <= 0.3 * (1 + 1e-6)


@pytest.mark.parametrize(
    ("name", "way"),
    each_once(list(sums.TASKS), NODES, also=lambda name, way: way.endswith("several users a node")),
)
def test_nodes_of_flower(name, way):
    asked = sums.TASKS[name]()
    with way(asked) as backend:
        check(sums.answers(backend, asked), name)


@pytest.mark.parametrize("way", THREADS.values(), ids=THREADS)
@pytest.mark.parametrize("name", SHARED)
def test_threads(name, way):
    asked = sums.TASKS[name]()
    with way(asked) as backend:
        check(sums.answers(backend, asked), name, floats=())  # these stay in one thread


@pytest.mark.parametrize("name", [name for name in sums.TASKS if name not in SHARED])
def test_threads_do_not_share_a_module(name):
    asked = sums.TASKS[name]()
    with sums.OnThreads(2, shareable=False)(asked) as backend:
        check(sums.answers(backend, asked, sums.FEW), name, sums.FEW, floats=())


@pytest.mark.ray
@pytest.mark.parametrize(
    ("name", "workers"),
    [("tags", 2)]
    + [pytest.param("tags", number, marks=pytest.mark.slow) for number in (1, 4)]
    + [pytest.param(name, 2, marks=pytest.mark.slow) for name in list(sums.TASKS)[1:]],
)
def test_workers_of_ray(ray, name, workers):
    with sums.on_ray(ray.share, workers, name) as (backend, asked):
        check(sums.answers(backend, asked), name)


@pytest.mark.slow
@pytest.mark.flower
@pytest.mark.ray
@pytest.mark.parametrize("simulation", [True, False], ids=["simulation", "processes on loopback"])
def test_flower_itself(flower, tmp_path, simulation):
    from tests.backends.flower.real import processes

    lines = "from tests.oracles import sums\n\napp = sums.{}_app\n"
    apps = {f"{side}_app": lines.format(side) for side in ("client", "server")}
    app = processes.write_app(tmp_path / "app", {"task": "", "out": ""}, **apps)
    here = {"PYTHONPATH": str(sums.ROOT)}
    superlink = flower.start_superlink(simulation=simulation, **here)
    if not simulation:
        for part in range(2):
            config = processes.run_config(partition_id=part, num_partitions=2)
            flower.start_supernode(part, superlink, config, **here)
    federation = processes.simulated(3) if simulation else ""
    for name in ("tags", "cnn", "next_words"):
        out = tmp_path / f"{name}.npz"
        log = flower.run(app, processes.run_config(task=name, out=str(out)), federation)
        assert Path(out).exists(), log[-4000:]
        check(sums.written(out), name, sums.FEW)
