"""Run-config, node-config and the bundle's pyproject agree."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from fedpriv.backends.flower.messages import BOUNDS
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
    read_switch,
)
from fedpriv.experiments.catalogue import load_experiment


def node_of(task):
    return Node(task=task, trainer=None, bounds=BOUNDS)


PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8"))
DECLARED = PROJECT["tool"]["flwr"]["app"]["config"]


def test_the_short_options_are_declared_so_that_they_can_be_overridden():
    names = {*SHORT_KEYS, "options"}
    assert set(DECLARED) == set(OWN_KEYS) | names
    assert {key: DECLARED[key] for key in OWN_KEYS} == OWN_KEYS
    assert all(DECLARED[key] == "" for key in names)


def test_the_declared_defaults_change_nothing():
    assert read_experiment(DECLARED) == load_experiment(OWN_KEYS["experiment"])
    assert read_grid_settings(DECLARED) == read_grid_settings({})


def test_overrides_reach_the_experiment():
    experiment = read_experiment(
        DECLARED | {"experiment": "dp-fedavg-tags", "rounds": 3, "noise-multiplier": 0.5,
                    "options": 'server = "adam"\nlocal.learning_rate = 2'}
    )  # fmt: skip
    assert experiment.name == "dp-fedavg-tags"
    options = experiment.options()
    assert (options["rounds"], options["noise.multiplier"]) == (3, 0.5)
    assert (options["server"], options["local.learning_rate"]) == ("adam", 2.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"round": 3}, "did you mean 'rounds'"),
        ({"rounds": "three"}, "rounds 'three' is not a finite number"),
        ({"bound": "hug"}, "bound 'hug' is not known"),
        ({"aggregate": "none", "ema-decay": 0.5}, "ema-decay belongs to aggregate 'ema'"),
        ({"experiment": "adadps-tag"}, "did you mean 'adadps-tags'"),
        ({"experiment": ""}, "experiment '' must be a word"),
    ],
)
def test_options_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        read_experiment(DECLARED | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max-in-flight": 0}, "max-in-flight 0 must be at least 1"),
        ({"max-in-flight": "many"}, "max-in-flight 'many' is not a finite number"),
        ({"round-deadline": True}, "round-deadline True is not a finite number"),
        ({"register-seconds": 0}, "register-seconds 0.0 must be above 0"),
        ({"round-deadline": float("inf")}, "round-deadline inf is not a finite number"),
        ({"max-in-flight": 1.5}, "max-in-flight 1.5 is not a whole number"),
        ({"allow-missing-users": 1}, "allow-missing-users 1 must be true or false"),
    ],
)
def test_grid_settings_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        read_grid_settings(DECLARED | changes)


def test_a_node_config_comes_before_the_run_config(tmp_path):
    assert read_path("corpus", {}, {"corpus": ""}) is None
    assert read_path("corpus", {"corpus": "/own"}, {"corpus": "/all"}) == Path("/own")
    assert read_path("corpus", {}, {"corpus": "/all"}) == Path("/all")
    assert read_switch({"secure": True}, "secure") is True


def test_relative_paths_are_refused():
    with pytest.raises(ValueError, match="out 'runs/1' must be an absolute path"):
        read_path("out", {"out": "runs/1"})


def test_a_missing_corpus_is_an_error_with_a_way_out(tmp_path):
    with pytest.raises(ValueError, match="is not a folder on this machine"):
        open_corpus({}, {"corpus": str(tmp_path / "none")})
    with pytest.raises(ValueError, match=r"absolute path.*--run-config 'corpus=\"/path\"'"):
        open_node(DECLARED, {})


def test_a_nodes_own_corpus_is_the_one_it_opens(tiny_corpus, tmp_path):
    assert len(open_node(DECLARED, {"corpus": str(tiny_corpus)}).task.roster) == 24
    named = DECLARED | {"corpus": str(tiny_corpus)}
    assert len(open_node(named, {}).task.roster) == 24
    with pytest.raises(ValueError, match="elsewhere' is not a folder"):
        open_node(named, {"corpus": str(tmp_path / "elsewhere")})


def test_a_node_without_a_partition_hosts_its_whole_roster(stub):
    task = stub.TinyTags()
    assert read_host(node_of(task), {}, {}).user_ids == set(task.roster)
    part = read_host(node_of(task), DECLARED, {"partition-id": 2, "num-partitions": 5})
    assert part.user_ids == {"user-02", "user-07"}
    with pytest.raises(ValueError, match="partition-id 5 of num-partitions 5 does not exist"):
        read_host(node_of(task), {}, {"partition-id": 5, "num-partitions": 5})
    with pytest.raises(ValueError, match="partition-id 'x' is not a finite number"):
        read_host(node_of(task), {}, {"partition-id": "x"})


@pytest.mark.parametrize(("shards", "num_nodes"), [(1, 1), (1, 4), (2, 4), (3, 400), (4, 4)])
def test_the_first_shards_host_everybody_and_the_others_nobody(stub, shards, num_nodes):
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
    ("shards", "nodes", "message"),
    [
        (5, {"partition-id": 0, "num-partitions": 4}, "shards 5 do not fit on 4 nodes; give num-s"),
        (2, {}, "shards 2 do not fit on 1 nodes"),
        (-1, {"partition-id": 0, "num-partitions": 4}, "shards -1 do not fit"),
        (1.5, {}, "shards 1.5 is not a whole number"),
        ("two", {}, "shards 'two' is not a finite number"),
        (True, {}, "shards True is not a finite number"),
        (2, {"partition-id": 4, "num-partitions": 4}, "partition-id 4 of num-partitions 4 does no"),
    ],
)
def test_shards_that_cannot_be_are_refused(stub, shards, nodes, message):
    with pytest.raises(ValueError, match=message):
        read_host(node_of(stub.TinyTags()), {"shards": shards}, nodes)
