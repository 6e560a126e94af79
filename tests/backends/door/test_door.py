"""Four methods that the door admits, each written through public parts only, on every backend.

Each is run whole, run again with a kill after the k-th line of its ledger, and verified.
"""

from __future__ import annotations

import copy
import pickle
import shutil
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedpriv.backends import SerialBackend
from fedpriv.mechanisms.event import Event
from fedpriv.privacy.ledger.state import read_ledger
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.sampling import SeparatedSampler
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.rng import Key
from fedpriv.runs.loop import rounds
from fedpriv.runs.secret_state import SecretState
from fedpriv.training.algorithm import SumRequest
from tests.backends.door import toy_methods, toys
from tests.backends.flower import stub_grid as stub
from tests.harness.combinations import each_once
from tests.harness.refusals import refuses
from tests.harness.toy_users import Tampered

TOYS, components, play = toy_methods.TOYS, toy_methods.components, toy_methods.play
HERE, killed = toy_methods.HERE, toy_methods.killed


@pytest.fixture(scope="module", params=["serial", "ray", "flower"])
def carry(request):
    """A backend over the toys' users."""
    if request.param == "serial":
        yield HERE
    elif request.param == "ray":
        from fedpriv.backends.ray.backend import RayBackend

        cluster = request.getfixturevalue("ray")
        backend = RayBackend(
            share=replace(cluster.share, num_workers=2, num_cpus=0.1, num_gpus=0),
            open_backend=toys.context,
            data=toys.TASK.data,
            max_examples=1,
        )
        yield backend
        backend.close()
    else:
        from fedpriv.backends.flower.client import Host
        from fedpriv.backends.flower.strategy import connect

        hosts = {
            number + 1: Host.of(toys.TASK, toys.WORKS, partition=number, num_partitions=3)
            for number in range(3)
        }
        yield connect(stub.StubGrid(hosts=hosts), toys.ROSTER)


WHOLE: dict[str, np.ndarray] = {}


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("name", TOYS)
def test_it_runs_and_verifies(name, carry, tmp_path):
    found = play(TOYS[name], tmp_path, carry)
    assert verify_run(tmp_path).ok
    assert np.isfinite(found).all()
    # One oracle for all backends: whoever runs first, all others find the same.
    np.testing.assert_allclose(found, WHOLE.setdefault(name, found), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize(("name", "die_after"), each_once(list(TOYS), [2, 1, 3]))
def test_it_survives_a_kill_after_a_charge(name, die_after, carry, tmp_path):
    killed(TOYS[name], tmp_path, 1 if name == "b" else die_after, carry)  # it has one line
    play(TOYS[name], tmp_path, carry)
    found = verify_run(tmp_path)
    assert found.ok, found


def lines(folder, kind):
    _, state, _ = read_ledger(folder / "ledger.jsonl")
    return list(getattr(state, kind))


@pytest.mark.slow
@pytest.mark.ray
def test_a_the_held_sum_is_released_again_at_a_price(carry, tmp_path):
    """In the first iteration no step helps along the coarse gradient: it is asked for once more."""
    play(toy_methods.Descent, tmp_path, carry)
    first = [charge for charge in lines(tmp_path, "charges") if charge.round_num == 1]
    losses = Event(kind="pure", epsilon=0.5)
    assert [(charge.query, charge.event) for charge in first] == [
        ("gradient", Event(kind="gaussian", noise_multiplier=3.0)),
        ("losses 0", losses),
        ("gradient again 2", Event(kind="gaussian", noise_multiplier=1.5)),
        ("losses 1", losses),
    ]
    # What left the iteration is made of all four, and says so.
    assert lines(tmp_path, "releases")[0].charges == ((1, 4),)


def test_a_the_held_sum_dies_with_its_block_and_does_not_travel(tmp_path):
    made = components(toy_methods.Descent)
    taken = []

    class Thief(toy_methods.Descent):
        def step(self, state, door):
            gradient = Mechanism(
                sampler=toy_methods.ALL, bound=toy_methods.CLIP, privatizer=self.coarse
            )
            with door.hold(SumRequest(params=state.params, mechanism=gradient, name="g")) as held:
                taken.append(held)
                for copied in (pickle.dumps, copy.copy, copy.deepcopy):
                    with pytest.raises(TypeError):
                        copied(held)
                assert "hidden" in repr(held)
            return None

    made.algorithm = Thief()
    assert list(rounds(made, HERE, Key.simulation(1))) == []
    with pytest.raises(ValueError):
        taken[0].release(toy_methods.Descent.fine)


@pytest.mark.parametrize("mode", ["simulation", "secure"])
def test_b_a_release_that_is_done_again_is_the_identical_one(mode, tmp_path):
    """Killed after its charge, then twice from there: one charge, and the same release."""
    first, second = tmp_path / "first", tmp_path / "second"
    killed(toy_methods.OneShot, first, 1, mode=mode)
    shutil.copytree(first, second)
    found = [play(toy_methods.OneShot, folder, HERE, mode=mode) for folder in (first, second)]
    np.testing.assert_array_equal(*found)
    again = tmp_path / "again"
    shutil.copytree(first, again)
    (again / "state.safetensors").unlink()
    trimmed = (again / "ledger.jsonl").read_bytes().split(b"\n")[:2]
    (again / "ledger.jsonl").write_bytes(b"\n".join(trimmed) + b"\n")
    # What is secret is gone with the release: no second noise on the same sum.
    with refuses(ValueError, "replay.key" if mode == "secure" else "secret/"):
        play(toy_methods.OneShot, again, HERE, mode=mode)
    for folder in (first, second):
        assert len(lines(folder, "charges")) == 1
    _, state, _ = read_ledger(first / "ledger.jsonl")
    assert (state.epsilon().value, state.epsilon().delta) == (1.0, 0.0)
    if mode == "secure":
        assert (first / "secret" / "replay.key").stat().st_mode & 0o777 == 0o600
        assert (first / "secret" / "replay.key").stat().st_size == 0


@pytest.mark.parametrize("mode", ["simulation", "secure"])
@pytest.mark.parametrize("die_after", [2, 3, 5])
def test_c_a_row_left_open_is_burned_and_its_users_took_part(
    mode, die_after, tmp_path, monkeypatch
):
    monkeypatch.setattr(SecretState, "forget", lambda self, name: None)  # it is looked at below
    drawn, draw = [], SeparatedSampler.next

    def noted(*given):
        drawn.append(draw(*given))
        return drawn[-1]

    monkeypatch.setattr(SeparatedSampler, "next", noted)
    killed(TOYS["c"], tmp_path, die_after, mode=mode)
    play(TOYS["c"], tmp_path, mode=mode)
    charges, rows = lines(tmp_path, "charges"), lines(tmp_path, "rows")
    assert len(charges) == 1 and [row.row for row in rows] == list(range(1, 10))
    assert len(lines(tmp_path, "releases")) == 8
    open_ = die_after - 1  # the first line was the charge
    released = {release.attempt for release in lines(tmp_path, "releases")}
    assert released == set(range(1, 10)) - {open_}
    times = load_file(tmp_path / "secret" / "cohorts-update.safetensors")["times"]
    # The kill came between the row and its cohort: nobody was drawn for it.
    assert times.max() <= 2 and len(drawn) == 8
    assert times.sum() == sum(len(cohort) for cohort, _ in drawn)


@pytest.mark.parametrize("lost", ["stream.key", "cohorts-update.safetensors"])
def test_c_secret_state_that_is_gone_is_missed(lost, tmp_path):
    """Another key would not cancel what was drawn, and a limit would be counted from zero."""
    killed(toy_methods.Stream, tmp_path, 4, mode="secure")
    (tmp_path / "secret" / lost).unlink()
    with pytest.raises(ValueError):
        play(toy_methods.Stream, tmp_path, HERE, mode="secure")


def test_d_too_few_shares_release_nothing(tmp_path):
    def few(user_id):
        if user_id > "user-07":
            raise OSError
        return toys.Users().examples(user_id)

    lacking = SerialBackend(trainer=toys.WORKS, data=Tampered(toys.Users(), few))
    with pytest.raises(ArithmeticError):
        play(toy_methods.Distributed, tmp_path, lacking)
    assert len(lines(tmp_path, "charges")) == 1 and not lines(tmp_path, "releases")


@pytest.mark.slow
def test_public_keys_open_nothing_private():
    made, seen = components(toy_methods.OneShot), []

    class Curious(toy_methods.OneShot):
        def step(self, state, door):
            for stream in ("noise", "cohort", "users", "vault", "program"):
                with pytest.raises(ValueError):
                    door.key(stream)
            seen.append(door.key("guide"))
            return None

    made.algorithm = Curious()
    list(rounds(made, HERE, Key.simulation(1)))
    assert len(seen) == 1
