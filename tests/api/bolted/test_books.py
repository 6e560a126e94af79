"""What a wrapped training leaves behind and says of itself: in print, on the ledger, in secret/."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedpriv.privacy.statement.coverage import FLOATS, KEY
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.secret_state import SecretState
from tests.api.bolted.test_bolt_on import people, release, trainer
from tests.harness.kills import killed
from tests.harness.refusals import refuses

OWN = "a training that is not the permutation SGD that was stated"
TAKEN = "whatever else your own code took from these rows"
EMPTY = "how many rows there are: one that is not there leaves its place empty"


class TestCoverage:
    def test_the_folder_says_what_the_release_said(self, tmp_path):
        made = release(out=tmp_path / "run", secure=True)
        found = verify_run(tmp_path / "run").coverage
        assert found.not_covered == made.epsilon.not_covered
        assert any(said.startswith(OWN) for said in found.not_covered)
        assert {TAKEN, FLOATS} < set(found.not_covered)
        assert "experiment.json" not in found.mark
        [line] = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
        assert json.loads(line)[KEY] == list(found.not_covered)
        simulated = release(out=tmp_path / "other")
        assert verify_run(tmp_path / "other").coverage.not_covered == simulated.epsilon.not_covered
        assert FLOATS not in simulated.epsilon.not_covered

    def test_add_remove_says_that_the_place_stays_empty(self, tmp_path):
        made = release(relation="add-remove", out=tmp_path / "run")
        assert EMPTY in repr(made) and EMPTY in verify_run(tmp_path / "run").coverage.mark
        assert EMPTY not in repr(release())


def test_a_training_cannot_lengthen_the_path_that_its_end_is_held_against():
    """Steps a million times longer, and an end where they might lead."""

    def cheating(walk):
        rates = walk.rates
        rates *= 1e6
        return {"w": np.full(3, 1e3)}

    def turned(walk):
        walk.rates.flags.writeable = True
        walk.rates[:] = 1e6
        return {"w": np.full(3, 1e3)}

    def shuffled(walk):
        walk.orders[0][:] = 0
        return {"w": walk.start["w"]}

    for train in (cheating, shuffled):
        with refuses(ValueError, "read-only"):
            release(train, target_epsilon=1e9)
    with pytest.raises(ValueError):
        release(turned, target_epsilon=1e9)


@pytest.mark.parametrize("epsilon", [1e300, 1e308])
def test_an_epsilon_of_any_size_is_printed(epsilon):
    assert "ε = " in repr(release(target_epsilon=epsilon))


def left(secret):
    return {path.name: path.read_bytes() for path in secret.iterdir()}


class TestSecrets:
    def test_nothing_secret_stays_once_the_release_is_on_the_ledger(self, tmp_path):
        release(out=tmp_path / "run", secure=True)
        assert left(tmp_path / "run" / "secret") == {"replay.key": b""}
        release(out=tmp_path / "other")
        assert not (tmp_path / "other" / "secret").exists()  # of a simulation nothing was secret
        release(out=tmp_path / "run", secure=True)  # it is read again all the same
        assert verify_run(tmp_path / "run").ok

    def test_it_stays_while_a_release_is_owed(self, tmp_path):
        """Killed before it is kept, the identical release is made for the same charge."""
        secret, owed = tmp_path / "run" / "secret", []

        def noted(folder, state):
            owed.append(state.params["w"])
            return True

        with killed(RunFolder, "keep", when=noted):
            release(out=tmp_path / "run", secure=True)
        assert set(left(secret)) == {"replay.key", "replay-update.safetensors"}
        assert len(left(secret)["replay.key"]) == 32
        with pytest.raises(ValueError):
            release(trainer(*people(1)), out=tmp_path / "run", secure=True)
        assert len(left(secret)["replay.key"]) == 32
        made = release(out=tmp_path / "run", secure=True)
        assert np.array_equal(made.params["w"], owed[0])
        assert verify_run(tmp_path / "run").num_charges == 1
        assert left(secret) == {"replay.key": b""}

    def test_what_a_kill_left_after_the_release_goes_with_the_next_look(self, tmp_path):
        with killed(SecretState, "forget"):
            release(out=tmp_path / "run", secure=True)
        assert left(tmp_path / "run" / "secret")["replay.key"]
        release(out=tmp_path / "run", secure=True)
        assert left(tmp_path / "run" / "secret") == {"replay.key": b""}
