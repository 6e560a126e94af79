"""Run-config, node-config and the bundle's pyproject agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpriv.backends.flower.settings import (
    OWN_KEYS,
    SHORT_KEYS,
    Node,
    open_corpus,
    open_node,
    read_experiment,
    read_grid_settings,
    read_host,
    read_path,
    read_value,
)
from fedpriv.experiments.load import load_experiment
from tests.backends.flower import stub_grid as stub
from tests.backends.flower.real.processes import DECLARED
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import Given


def node_of(task):
    return Node(task=task, trainer=Given())


def test_every_key_is_declared_so_that_it_can_be_overridden():
    assert set(DECLARED) == {*OWN_KEYS, *SHORT_KEYS, "options"}
    assert {key: DECLARED[key] for key in OWN_KEYS} == OWN_KEYS
    assert all(DECLARED[key] == "" for key in (*SHORT_KEYS, "options"))
    assert read_experiment(DECLARED) == load_experiment(OWN_KEYS["experiment"])


def test_overrides_reach_the_experiment():
    experiment = read_experiment(
        DECLARED | {"experiment": "dp-fedavg-tags", "rounds": 3, "noise-multiplier": 0.5,
                    "options": "server = 'adam'\nlocal.learning-rate = 2.0"}
    )  # fmt: skip
    options = experiment.options()
    assert (experiment.name, experiment.rounds) == ("dp-fedavg-tags", 3)
    assert options["noise.multiplier"] == 0.5 and options["server"] == "adam"
    assert options["local.learning_rate"] == 2.0


@pytest.mark.parametrize(
    ("read", "changes", "message"),
    [
        (read_experiment, {"round": 3}, ("rounds",)),
        (read_experiment, {"experiment": "adadps-tag"}, ("adadps-tags",)),
        (read_experiment, {"experiment": ""}, ("experiment",)),
        (read_experiment, {"options": "x ="}, ()),
        (read_grid_settings, {"max-in-flight": 0}, ("max-in-flight", 0)),
        (read_grid_settings, {"round-deadline": True}, ("round-deadline", "True")),
        (read_grid_settings, {"register-seconds": 0}, ("register-seconds", 0.0)),
        (read_grid_settings, {"max-in-flight": 1.5}, ("max-in-flight", 1.5)),
        (read_grid_settings, {"allow-missing-users": 1}, ()),
        (lambda config: read_path("out", config), {"out": "runs/1"}, ()),
    ],
)
def test_values_that_make_no_sense_are_refused(read, changes, message):
    assert read(DECLARED) == read({})  # what is declared changes nothing
    with refuses(ValueError, *message):
        read(DECLARED | changes)


def test_a_node_config_comes_before_the_run_config(tmp_path):
    assert read_path("corpus", {}, {"corpus": ""}) is None
    assert read_path("corpus", {"corpus": "/own"}, {"corpus": "/all"}) == Path("/own")
    assert read_path("corpus", {}, {"corpus": "/all"}) == Path("/all")
    assert read_value({"secure": True}, "secure") is True


def test_a_missing_corpus_is_an_error_with_a_way_out(tmp_path):
    with pytest.raises(ValueError):
        open_corpus({}, {"corpus": str(tmp_path / "none")})
    with refuses(ValueError, "--run-config", 'corpus="/path"'):
        open_node(DECLARED, {})


def test_a_nodes_own_corpus_is_the_one_it_opens(tiny_corpus, tmp_path):
    assert len(open_node(DECLARED, {"corpus": str(tiny_corpus)}).task.roster) == 24
    named = DECLARED | {"corpus": str(tiny_corpus)}
    assert len(open_node(named, {}).task.roster) == 24
    with pytest.raises(ValueError):
        open_node(named, {"corpus": str(tmp_path / "elsewhere")})


@pytest.mark.parametrize(("shards", "num_nodes"), [(1, 1), (1, 4), (2, 4), (3, 400), (4, 4)])
def test_the_first_shards_host_everybody_and_the_others_nobody(shards, num_nodes):
    task = stub.TinyTags()
    hosts = [
        read_host(
            node_of(task), {"shards": shards}, {"partition-id": p, "num-partitions": num_nodes}
        )
        for p in range(num_nodes)
    ]
    hosted = [user for host in hosts for user in host.user_ids]
    assert sorted(hosted) == sorted(task.roster)
    sizes = [len(host.user_ids) for host in hosts]
    assert sizes[:shards] == [12 // shards] * shards and not any(sizes[shards:])


@pytest.mark.parametrize(
    ("shards", "node", "message"),
    [
        (5, {"partition-id": 0, "num-partitions": 4}, "num-supernodes"),
        (-1, {"partition-id": 0, "num-partitions": 4}, -1),
        ("two", {}, "shards"),
        (2, {"partition-id": 4, "num-partitions": 4}, "num-partitions"),
        (0, {"partition-id": "x", "num-partitions": 2}, "partition-id"),
        (0, {"partition-id": 0}, "num-partitions"),
        (0, {"partition-id": 1}, "num-partitions"),
        (0, {"num-partitions": 3}, "partition-id"),
    ],
)
def test_partitions_that_cannot_be_are_refused(shards, node, message):
    task = stub.TinyTags()
    assert read_host(node_of(task), {}, {}).user_ids == set(task.roster)
    part = read_host(node_of(task), DECLARED, {"partition-id": 2, "num-partitions": 5})
    assert part.user_ids == {"user-02", "user-07"}
    with refuses(ValueError, message):
        read_host(node_of(task), {"shards": shards}, node)
