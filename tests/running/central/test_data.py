"""Resumed centralised runs go on with the same examples, by their digests, or not at all."""

import json

import pytest

from fedpriv.privacy.statement.verify import verify_run
from fedpriv.runs.prepared import start_run
from tests.harness.kills import Killed, after_round
from tests.harness.refusals import refuses
from tests.harness.resealed import edit_document
from tests.harness.resumed import resume_run
from tests.harness.tag_runs import unchanged
from tests.running.central.synthetic import NAME, STEPS, World, data, synthetic_experiment


def killed_run(folder, **options):
    """Return the folder of a run that died between a step that was kept and the next charge."""
    with pytest.raises(Killed):
        start_run(synthetic_experiment(), NAME, None, folder, **options).run(after_round(9))
    return folder


class TestOtherData:
    """A run goes on with the examples it was started with, by their digests."""

    @pytest.fixture(params=[False, True], ids=["simulation", "secure"])
    def folder(self, request, tmp_path):
        return killed_run(tmp_path / "r", secure=request.param)

    @pytest.mark.slow
    def test_the_same_made_again_go_on(self, folder, world):
        world.setattr(World, "data", data())
        assert resume_run(folder).run()["rounds"] == STEPS
        assert verify_run(folder).ok

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("other", "said"),
        [
            (data(seed=7), "private"),
            (data(public_seed=7), "public"),
            (data(7, 8), "private and public"),
        ],
    )
    def test_others_of_the_same_number_are_refused_and_nothing_is_spent(
        self, folder, world, other, said
    ):
        with world.context() as changed, unchanged(folder), refuses(ValueError, "sixty", said):
            changed.setattr(World, "data", other)
            resume_run(folder)
        assert resume_run(folder).run()["rounds"] == STEPS  # the ledger was let go of

    def test_a_task_that_falls_silent_is_refused(self, folder, world):
        world.setattr(World, "silent", True)
        with refuses(ValueError, "data_sha256"):
            resume_run(folder)

    def test_the_digest_is_sealed(self, folder, world):
        corpus = json.loads((folder / "experiment.json").read_text())["corpus"]
        assert corpus["data_sha256"].keys() == {"private", "public"}
        corpus["data_sha256"]["private"] = "0" * 64
        edit_document(folder, corpus=corpus)
        with refuses(ValueError, "experiment.json"):
            resume_run(folder)
        assert not verify_run(folder).ok


def test_a_task_without_digests_is_not_checked(tmp_path, world):
    world.setattr(World, "silent", True)
    folder = killed_run(tmp_path / "r")
    document = json.loads((folder / "experiment.json").read_text())
    assert "data_sha256" not in document["corpus"]
    world.setattr(World, "data", data(seed=7))
    assert resume_run(folder).run()["rounds"] == STEPS


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
    folder = killed_run(tmp_path / "r", secure=True)
    (folder / "data.key").unlink()
    with refuses(ValueError, "data.key"):
        resume_run(folder)
