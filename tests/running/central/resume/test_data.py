"""Resumed centralised runs go on with the same examples, by their digests, or not at all."""

from __future__ import annotations

import json

import pytest

from fedpriv.privacy.statement.verify import verify_run
from fedpriv.runs.prepared import start_run
from tests.harness.resumed import resume_run
from tests.running.central.resume.synthetic import (
    NAME,
    STEPS,
    World,
    data,
    killed_after,
    synthetic_experiment,
)


class TestOtherData:
    """A run goes on with the examples it was started with, by their digests."""

    @pytest.fixture(params=[False, True], ids=["simulation", "secure"])
    def folder(self, request, tmp_path):
        folder = tmp_path / "r"
        prepared = start_run(synthetic_experiment(), NAME, None, folder, secure=request.param)
        with pytest.raises(KeyboardInterrupt):
            prepared.run(killed_after(9))
        return folder

    @pytest.mark.slow
    def test_the_same_made_again_go_on(self, folder, world):
        world.setattr(World, "data", data())
        assert resume_run(folder).run()["rounds"] == STEPS
        assert verify_run(folder).ok

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("other", "said"),
        [
            (data(seed=7), r"the private examples of sixty are not those .* another folder"),
            (data(public_seed=7), r"the public examples of sixty are not those"),
            (data(7, 8), r"the private and public examples of sixty"),
        ],
    )
    def test_others_of_the_same_number_are_refused_and_nothing_is_spent(
        self, folder, world, other, said
    ):
        charges = (folder / "ledger.jsonl").read_bytes()
        with world.context() as changed:
            changed.setattr(World, "data", other)
            with pytest.raises(ValueError, match=said):
                resume_run(folder)
        assert (folder / "ledger.jsonl").read_bytes() == charges
        assert resume_run(folder).run()["rounds"] == STEPS  # the ledger was let go of

    def test_a_task_that_falls_silent_is_refused(self, folder, world):
        world.setattr(World, "silent", True)
        with pytest.raises(ValueError, match="no longer says what its data are"):
            resume_run(folder)

    def test_the_digest_is_sealed(self, folder, world):
        file = folder / "experiment.json"
        document = json.loads(file.read_text())
        assert document["corpus"]["data_sha256"].keys() == {"private", "public"}
        document["corpus"]["data_sha256"]["private"] = "0" * 64
        file.write_text(json.dumps(document))
        with pytest.raises(ValueError, match="not the one the run was started with"):
            resume_run(folder)
        assert not verify_run(folder).ok


def test_a_task_without_digests_is_not_checked(tmp_path, world):
    world.setattr(World, "silent", True)
    with pytest.raises(KeyboardInterrupt):
        start_run(synthetic_experiment(), NAME, None, tmp_path / "r").run(killed_after(9))
    document = json.loads((tmp_path / "r" / "experiment.json").read_text())
    assert "data_sha256" not in document["corpus"]
    world.setattr(World, "data", data(seed=7))
    assert resume_run(tmp_path / "r").run()["rounds"] == STEPS


@pytest.mark.slow
def test_a_secure_run_publishes_no_digest_of_private_examples(tmp_path):
    """Whoever has all examples but one could try the last; without the key nothing fits."""
    for folder, secure in ((tmp_path / "plain", False), (tmp_path / "secure", True)):
        start_run(synthetic_experiment(), NAME, None, folder, secure=secure).run()
        known = World.data.sha256()
        written = {
            file.name: file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()
        }
        shown = {
            name
            for name, content in written.items()
            for value in known.values()
            if value.encode() in content
        }
        assert shown == (set() if secure else {"experiment.json"})
        assert ("data.key" in written) == secure
        if secure:
            assert (folder / "data.key").stat().st_mode & 0o777 == 0o600
            secret = written.pop("data.key")
            assert not any(secret in content for content in written.values())


def test_without_its_key_a_secure_run_cannot_be_checked(tmp_path):
    folder = tmp_path / "r"
    with pytest.raises(KeyboardInterrupt):
        start_run(synthetic_experiment(), NAME, None, folder, secure=True).run(killed_after(9))
    (folder / "data.key").unlink()
    with pytest.raises(ValueError, match=r"data\.key is gone.*restore it, or start a new run"):
        resume_run(folder)
