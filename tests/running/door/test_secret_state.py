"""The secret_state: secret state that is the same after a restart, and nobody else's to read."""

import os
import stat

import numpy as np
import pytest

from fedpriv.rng import Key
from fedpriv.runs.secret_state import SecretState
from tests.harness.kills import killed
from tests.harness.refusals import refuses

SIMULATED = Key.simulation(7)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "secret"


def secure(folder):
    """The state that a new process finds, whose root key is another each time."""
    return SecretState(folder, Key.secure())


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def order(monkeypatch):
    """What is synced and what is renamed, one after the other."""
    done, real = [], {name: getattr(os, name) for name in ("fsync", "replace")}

    def fsync(descriptor):
        done.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))
        return real["fsync"](descriptor)

    def replace(old, new):
        done.append(("rename", str(new)))
        return real["replace"](old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    return done


class TestSecureKeys:
    def test_a_key_is_the_same_after_reopening_whatever_the_root(self, folder):
        """A secure run's root key is new in every process; what must go on does not hang on it."""
        first = secure(folder)
        key = first.key("stream", fresh=True)
        assert key.mode == "secure" and first.key("stream", fresh=True) is key
        again = secure(folder).key("stream", fresh=True)
        assert again == key and again.to_bytes() == key.to_bytes() and again.mode == "secure"
        np.testing.assert_array_equal(
            again.fold(1).normal((50,), np.float32), key.fold(1).normal((50,), np.float32)
        )

    def test_it_is_for_its_owner_alone(self, folder, umask):
        secure(folder).key("stream", fresh=True)
        assert [path.name for path in folder.iterdir()] == ["stream.key"]
        assert mode(folder / "stream.key") == 0o600 and mode(folder) == 0o700

    def test_a_run_that_has_drawn_nothing_takes_over_no_key(self, folder):
        """A folder copied or left over: two runs under one key draw one noise on two sums."""
        left = secure(folder).key("stream", fresh=True)
        new = secure(folder).key("stream", fresh=True, renew=True)
        assert new.to_bytes() != left.to_bytes()
        assert secure(folder).key("stream").to_bytes() == new.to_bytes()

    @pytest.mark.parametrize("kept", [True, False])
    def test_names_and_runs_have_keys_of_their_own(self, tmp_path, kept):
        root = Key.secure()
        keys = {
            SecretState(tmp_path / run if kept else None, root).key(name, fresh=True).to_bytes()
            for run in ("a", "b")
            for name in ("stream", "replay")
        }
        assert len(keys) == 4 and root.to_bytes() not in keys

    def test_it_is_on_the_disk_before_it_is_given_out(self, folder, order):
        """Written under another name, synced, renamed, and the folder synced."""
        secure(folder).key("stream", fresh=True)
        part, whole = str(folder / ".stream.key.part"), str(folder / "stream.key")
        assert order.index(("sync", part)) < order.index(("rename", whole))
        assert order.index(("rename", whole)) < order.index(("sync", str(folder)))

    @pytest.mark.parametrize("content", [b"", b"x" * 31, b"x" * 33, b"x" * 64])
    def test_a_damaged_key_is_refused_and_kept(self, folder, content):
        secure(folder).key("stream", fresh=True)
        (folder / "stream.key").write_bytes(content)
        with refuses(ValueError, "stream.key"):
            secure(folder).key("stream", fresh=True)
        assert (folder / "stream.key").read_bytes() == content

    def test_a_kill_while_it_is_written_leaves_no_half_key(self, folder):
        with killed(os, "replace"):
            secure(folder).key("stream", fresh=True)
        assert not (folder / "stream.key").exists()
        key = secure(folder).key("stream", fresh=True)
        assert secure(folder).key("stream", fresh=True).to_bytes() == key.to_bytes()

    def test_a_key_that_something_was_drawn_from_is_missed(self, folder):
        with refuses(ValueError, "stream.key"):
            secure(folder).key("stream")


class TestSimulatedKeys:
    def test_they_come_from_the_seed_and_are_written_nowhere(self, folder):
        key = SecretState(folder, SIMULATED).key("stream", fresh=True)
        for place in (folder, None):
            again = SecretState(place, Key.simulation(7)).key("stream", fresh=True)
            assert again.to_bytes() == key.to_bytes()
        assert key.mode == "simulation" and not folder.exists()

    def test_names_and_seeds_and_the_streams_of_rounds_have_keys_of_their_own(self, folder):
        keys = [
            SecretState(folder, Key.simulation(s)).key(n, fresh=True)
            for s in (7, 8)
            for n in ("stream", "b")
        ]
        others = [
            SIMULATED.fold(stream) for stream in ("noise", "cohort", "users", "guide", "stream")
        ]
        assert len({key.to_bytes() for key in keys + others}) == 9
        assert keys[0] == SIMULATED.fold("vault").fold("stream")  # whatever resumes an old run

    def test_they_are_not_read_from_a_file_either(self, folder):
        secure(folder).key("stream", fresh=True)
        found = SecretState(folder, SIMULATED).key("stream", fresh=True)
        assert found.to_bytes() == SecretState(None, SIMULATED).key("stream", fresh=True).to_bytes()


class TestMemories:
    MEMORY = {"times": np.array([0, 2, 1], np.int64), "rows": np.zeros((2, 0), np.float32)}  # noqa: RUF012

    def same(self, found, expected=None):
        expected = self.MEMORY if expected is None else expected
        return set(found) == set(expected) and all(
            found[name].dtype == array.dtype and np.array_equal(found[name], array)
            for name, array in expected.items()
        )

    @pytest.mark.parametrize("root", [SIMULATED, Key.secure()], ids=["simulation", "secure"])
    def test_what_is_remembered_comes_back_after_reopening(self, folder, root):
        state = SecretState(folder, root)
        assert state.recall("cohorts") is None
        for memory in (self.MEMORY, {"times": np.array([1, 2, 1], np.int64)}):
            state.remember("cohorts", memory)
            for reader in (state, SecretState(folder, root)):
                assert self.same(reader.recall("cohorts"), memory)
        assert state.recall("others") is None
        assert [path.name for path in folder.iterdir()] == ["cohorts.safetensors"]

    def test_it_is_for_its_owner_alone(self, folder, umask):
        SecretState(folder, SIMULATED).remember("cohorts", self.MEMORY)
        assert mode(folder / "cohorts.safetensors") == 0o600 and mode(folder) == 0o700

    def test_samplers_without_a_memory_write_nothing(self, folder):
        for root in (SIMULATED, Key.secure()):
            state = SecretState(folder, root)
            state.remember("cohorts", {})
            assert state.recall("cohorts") is None and not folder.exists()

    def test_it_is_synced_when_remember_returns(self, folder, order):
        SecretState(folder, SIMULATED).remember("cohorts", self.MEMORY)
        for path in (folder / ".cohorts.safetensors.part", folder):
            assert ("sync", str(path)) in order

    @pytest.mark.parametrize("name", ["replace", "write", "fsync"])
    def test_a_kill_while_it_is_replaced_leaves_the_one_before(self, folder, name):
        SecretState(folder, SIMULATED).remember("cohorts", self.MEMORY)
        with killed(os, name):
            SecretState(folder, SIMULATED).remember("cohorts", {"times": np.zeros(3, np.int64)})
        assert self.same(SecretState(folder, SIMULATED).recall("cohorts"))

    def test_short_writes_are_continued(self, folder, monkeypatch):
        """As on a disk that takes only a part at a time; half a memory would forget users."""
        real = os.write
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda fd, data: real(fd, data[:7]))
            SecretState(folder, SIMULATED).remember("cohorts", self.MEMORY)
        assert self.same(SecretState(folder, SIMULATED).recall("cohorts"))


def test_in_memory_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for root in (SIMULATED, Key.secure()):
        state = SecretState(None, root)
        key = state.key("stream", fresh=True)
        assert state.key("stream", fresh=True).to_bytes() == key.to_bytes()
        assert key.mode == root.mode
        state.remember("cohorts", {"times": np.ones(3)})
        np.testing.assert_array_equal(state.recall("cohorts")["times"], np.ones(3))
    assert not list(tmp_path.iterdir())


class TestForgetting:
    """What only a replayed release is made from is gone once that is on the ledger."""

    def filled(self, folder):
        state = secure(folder)
        for name in ("replay", "stream"):
            state.key(name, fresh=True)
        for name in ("replay-update", "replay-losses", "replayed", "cohorts-update"):
            state.remember(name, {"a": np.ones(2)})
        return state

    def check_forgotten(self, state, kept):
        assert state.recall("replay-update") is state.recall("replay-losses") is None
        assert state.recall("replayed") and state.recall("cohorts-update")
        assert state.key("stream") == kept

    def test_a_key_is_emptied_and_what_goes_with_it_deleted(self, folder):
        state = self.filled(folder)
        kept = state.key("stream")
        state.forget("replay")
        assert {path.name: path.stat().st_size > 0 for path in folder.iterdir()} == {
            "replay.key": False,
            "stream.key": True,
            "replayed.safetensors": True,
            "cohorts-update.safetensors": True,
        }
        for again in (state, secure(folder)):
            self.check_forgotten(again, kept)
            with refuses(ValueError, "replay.key"):
                again.key("replay", fresh=True)
        state.forget("replay")  # a second time changes nothing
        assert (folder / "replay.key").read_bytes() == b""

    def test_it_is_synced_and_an_empty_folder_goes(self, folder, order):
        state = SecretState(folder, SIMULATED)
        state.remember("replay-update", {"a": np.ones(2)})
        order.clear()
        state.forget("replay")
        assert order == [("sync", str(folder)), ("sync", str(folder.parent))]
        assert not folder.exists()
        state.forget("replay")
        assert not folder.exists()

    def test_in_memory(self):
        state = self.filled(None)
        before, kept = state.key("replay"), state.key("stream")
        state.forget("replay")
        self.check_forgotten(state, kept)
        assert state.key("replay", fresh=True) != before
        state.forget("never made")
