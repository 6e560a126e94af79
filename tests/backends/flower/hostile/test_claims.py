"""What a node may claim to host, and who is believed."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from flwr.app import Error
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes

import fedpriv as fp
from fedpriv import tree
from fedpriv.backends import SerialBackend
from fedpriv.backends.flower.client import Host
from fedpriv.backends.flower.registry import _holder_of, read_node_keys, register
from fedpriv.backends.flower.settings import read_grid_settings
from fedpriv.backends.flower.strategy import GridSettings, connect
from fedpriv.rng import Key
from fedpriv.training.algorithm import SumRequest
from fedpriv.training.work import Attempt
from tests.backends.flower import stub_grid as stub
from tests.backends.flower.hostile.payloads import EXACT, SCHEDULE
from tests.backends.flower.test_registry import Answers
from tests.harness.refusals import refuses
from tests.harness.waiting import Clock

PAIRS = [generate_key_pairs()[1] for _ in range(4)]
PEM = [public_key_to_bytes(key) for key in PAIRS]  # as the SuperLink has them
PUB = [
    key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    for key in PAIRS
]  # as ssh-keygen wrote them
QUICK = GridSettings(register_seconds=1.0, round_deadline=60.0)


def claiming(hosts, node_id, user_ids, *, first=False):
    """The nodes, one of which claims further users, and is asked before all others or after."""
    claims = replace(hosts[node_id], user_ids=hosts[node_id].user_ids | set(user_ids))
    others = {key: host for key, host in hosts.items() if key != node_id}
    return {node_id: claims} | others if first else others | {node_id: claims}


def asked(task, grid, settings=QUICK):
    backend = connect(grid, task.roster, settings)
    given = SumRequest(params=task.params()), Attempt(bound=EXACT, key=Key.simulation(1))
    found = backend.sum(*given, task.roster)
    oracle = SerialBackend(trainer=task.trainer(SCHEDULE, {}), data=task.data)

    def expected(users):
        return tree.to_dense(oracle.sum(*given, users).total)

    return tree.to_dense(found.total), expected, backend.exchange.dropped


def equal(left, right):
    return all(np.array_equal(left[name], right[name]) for name in right)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("num_claimed", [1, 5])
def test_a_contested_user_contributes_zero_and_stops_nobody(caplog, first, num_claimed):
    task = stub.TinyTags()
    hosts = stub.shards(task, 3)
    stolen = sorted(hosts[102].user_ids | hosts[103].user_ids)[:num_claimed]
    with caplog.at_level(logging.WARNING):
        found, expected, counts = asked(
            task, stub.StubGrid(claiming(hosts, 101, stolen, first=first))
        )
    assert equal(found, expected([user for user in task.roster if user not in stolen]))
    assert counts == {"contested": num_claimed}
    assert f"{num_claimed} of 12 rostered users are claimed by two nodes or more" in caplog.text


def test_a_roster_that_is_contested_as_a_whole_is_refused():
    task = stub.TinyTags()
    grid = stub.StubGrid(claiming(stub.shards(task, 2), 101, task.roster) | {
        103: Host.of(task, task.trainer(SCHEDULE, {}))
    })  # fmt: skip
    with refuses(ValueError, 12, "node-users"):
        asked(task, grid)


@pytest.fixture
def written(tmp_path):
    """The nodes of three keys, and the operator's file that binds their users to them."""
    task = stub.TinyTags()
    hosts = stub.shards(task, 3)
    bound = {PUB[n]: sorted(hosts[101 + n].user_ids) for n in range(3)}
    (tmp_path / "nodes.json").write_text(json.dumps(bound), "utf-8")
    keys = {101 + n: PEM[n] for n in range(4)}
    return task, hosts, keys, tmp_path / "nodes.json"


@pytest.mark.parametrize("first", [True, False])
def test_with_keys_only_the_bound_node_hosts_a_user(written, first):
    task, hosts, keys, path = written
    hosts[104] = Host(works=hosts[101].works, data=task.data, user_ids=frozenset())
    settings = replace(QUICK, node_users=read_node_keys(path))
    for thief in (101, 104):  # one that is bound to others, and one that is bound to nobody
        grid = stub.StubGrid(claiming(hosts, thief, task.roster, first=first), keys=keys)
        found, expected, counts = asked(task, grid, settings)
        assert equal(found, expected(task.roster)) and not counts
        assert {r.metadata.dst_node_id for r in grid.requests} == {101, 102, 103}


@pytest.mark.slow
def test_a_node_id_is_nothing_without_its_key(written):
    """Who takes the place of a node that left takes none of its users."""
    task, hosts, keys, path = written
    settings = replace(QUICK, node_users=read_node_keys(path), allow_missing_users=True)
    grid = stub.StubGrid(hosts, keys=keys | {102: PEM[3], 103: b"no key at all"})
    found, expected, _ = asked(task, grid, settings)
    assert equal(found, expected(sorted(hosts[101].user_ids, key=task.roster.index)))


def test_a_bound_nodes_failure_is_waited_out_while_others_may_come(written):
    """Once only users of failed nodes are missing, no other node could host them."""
    task, hosts, keys, path = written
    hosts[103] = Answers.claiming(task, Error(2, "another plan"))
    for there, missing, least in ((hosts, 4, 0), ({101: hosts[101], 103: hosts[103]}, 8, 1000)):
        grid, clock = stub.StubGrid(there, keys=keys), Clock()
        exchange = stub.timed(grid, clock)
        with refuses(ValueError, missing, 12):
            register(exchange, task.roster, seconds=1000.0, keys=read_node_keys(path))
        assert least <= clock.now < least + 60


def test_who_lists_users_of_which_other_key_is_said(written, caplog):
    task, hosts, keys, path = written
    bound = {f"{key} {name}": ids for (key, ids), name in zip(
        json.loads(path.read_text("utf-8")).items(), ("ward 7", "ward 8", "ward 9"), strict=True
    )}  # fmt: skip
    path.write_text(json.dumps(bound), "utf-8")
    settings = replace(QUICK, node_users=read_node_keys(path))
    swapped = hosts | {101: hosts[102]}  # node 2's data lie on node 1, and nobody has its own
    with refuses(ValueError, 4, 12) as refused:
        asked(task, stub.StubGrid(swapped, keys=keys), settings)
    said = str(refused.value)
    assert "4 of ward 7" in said and "user-" not in said
    assert "ward 7, node 101 lists 4 users whom node-users binds to ward 8" in said
    with caplog.at_level(logging.WARNING):
        asked(task, stub.StubGrid(claiming(hosts, 103, hosts[101].user_ids), keys=keys), settings)
    assert "ward 9, node 103 lists 4 users whom node-users binds to ward 7" in caplog.text


def test_a_file_may_be_toml_and_name_keys_as_pem(tmp_path):
    text = f'"{PUB[0]} ward 7" = ["a"]\n' + json.dumps(PEM[1].decode()) + ' = ["b", "c"]\n'
    (tmp_path / "nodes.toml").write_text(text, "utf-8")
    settings = read_grid_settings({"node-users": str(tmp_path / "nodes.toml")})
    assert settings.node_users is not None
    first, second, third = (_holder_of(key, settings.node_users) for key in PEM[:3])
    assert first is not None and second is not None and third is None
    assert (first.name, first.user_ids) == ("ward 7", {"a"})
    assert second.name.startswith("SHA256:") and second.user_ids == {"b", "c"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", ()),
        ("[]", ()),
        ("{}", ()),
        (json.dumps({"101": ["a"]}), (101,)),
        (json.dumps({PUB[0]: "a"}), ()),
        (json.dumps({PUB[0]: [7]}), ()),
        (json.dumps({PUB[0]: ["a"], PUB[1]: ["b", "a"]}), ("a",)),
        (json.dumps({PUB[0]: ["a", "a"]}), ("a",)),
        (json.dumps({PUB[0]: ["a"], PEM[0].decode(): ["b"]}), ()),
    ],
)
def test_a_file_that_binds_nobody_or_somebody_twice_is_refused(tmp_path, content, message):
    (tmp_path / "nodes.json").write_text(content, "utf-8")
    with refuses(ValueError, *message):
        read_node_keys(tmp_path / "nodes.json")


class TestSecureRuns:
    def trained(self, tmp_path, settings, keys):
        task = stub.TinyTags()
        plan = fp.Rounds(users=12, cohort=6, rounds=1).plan(l2_clip_norm=0.3, noise_multiplier=1.0)
        loop = fp.averaging(
            plan, roster=task.roster, params=task.params(), out=tmp_path / "run", secure=True
        )
        grid = stub.StubGrid(stub.shards(task, 3), keys=keys)
        return loop(connect(grid, task.roster, settings))

    def test_they_are_refused_on_nodes_without_keys_before_anything_is_written(self, tmp_path):
        with refuses(ValueError, "node-users", "allow-unauthenticated-nodes"):
            self.trained(tmp_path, QUICK, {})
        assert not (tmp_path / "run").exists()

    def test_they_run_on_nodes_with_keys_or_where_it_is_allowed_by_name(self, written, tmp_path):
        _, _, keys, path = written
        by_key = replace(QUICK, node_users=read_node_keys(path))
        for number, settings in enumerate(
            (by_key, replace(QUICK, allow_unauthenticated_nodes=True))
        ):
            out = tmp_path / str(number)
            assert self.trained(out, settings, keys).params
