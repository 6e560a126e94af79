"""Run folders that were interrupted, tampered with or damaged."""

import json
import shutil

import pytest

from fedpriv import json_lines
from fedpriv.datasets.importers.synthetic import Shape, synthesize
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.rosters import RosterSpec
from fedpriv.runs.prepared import resume_run
from tests.harness.resealed import reseal
from tests.harness.tag_runs import NOISE, RELEASED, charged, pairs, start, stopping

SHAPE = Shape(
    num_users=20, num_sentences=400, public_users=8, num_words=200, num_tags=10, num_topics=4
)
# As many words and tags whatever the text is, so that the model has the same shape.
SMALL = {"shape": SHAPE, "max_words": 40, "max_tags": 3}


def interrupted(corpus, folder, after=4):
    with pytest.raises(KeyboardInterrupt):
        start(corpus, folder, make_backend=stopping(after)).run()
    return folder


class TestDamage:
    @pytest.mark.slow
    def test_torn_last_lines_are_cut_off(self, tiny_corpus, tmp_path):
        folder = interrupted(tiny_corpus, tmp_path / "run")
        for name, torn in (
            ("ledger", b'{"attempt":2,"ev'),
            ("rounds", b'{"round_num": 4, "at'),
            ("diagnostics", b'{"round'),
        ):
            with (folder / f"{name}.jsonl").open("ab") as file:
                file.write(torn)
        assert resume_run(folder).run()["rounds"] == 5
        assert pairs(json_lines.read(folder / "rounds.jsonl")) == [
            (1, 1),
            (2, 1),
            (3, 1),
            (4, 2),
            (5, 1),
        ]
        assert pairs(json_lines.read(folder / "diagnostics.jsonl")) == pairs(
            json_lines.read(folder / "rounds.jsonl")
        )
        assert len(charged(folder)) == 6

    def test_a_record_that_was_torn_away_is_written_again(self, tiny_corpus, tmp_path):
        folder = interrupted(tiny_corpus, tmp_path / "run")
        content = (folder / "rounds.jsonl").read_bytes()
        (folder / "rounds.jsonl").write_bytes(content[:-9])
        plan = resume_run(folder)
        epsilon = plan.components.plan.epsilon(3).value
        plan.run()
        lines = json_lines.read(folder / "rounds.jsonl")
        assert [line["round_num"] for line in lines] == [1, 2, 3, 4, 5]
        assert lines[2]["epsilon"] == epsilon and set(lines[2]) == RELEASED

    @pytest.mark.slow
    @pytest.mark.parametrize("change", ["drop", "swap", "edit", "repeat"])
    def test_an_edited_ledger_is_refused_and_nothing_is_drawn(self, tiny_corpus, tmp_path, change):
        folder = interrupted(tiny_corpus, tmp_path / "run")
        lines = (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)
        if change == "drop":
            del lines[1]
        elif change == "swap":
            lines[1], lines[2] = lines[2], lines[1]
        elif change == "edit":
            lines[0] = lines[0].replace(b'"noise_multiplier":1.0', b'"noise_multiplier":9.0')
        else:
            lines.insert(2, lines[1])
        (folder / "ledger.jsonl").write_bytes(b"".join(lines))
        before = {f: f.read_bytes() for f in folder.rglob("*") if f.is_file()}
        with pytest.raises(ValueError, match="ledger"):
            resume_run(folder)
        assert before == {f: f.read_bytes() for f in before}

    @pytest.mark.slow
    @pytest.mark.parametrize("lines", [1, 3, 5])
    def test_an_older_ledger_is_refused(self, tiny_corpus, tmp_path, lines):
        folder = interrupted(tiny_corpus, tmp_path / "run")
        content = (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)
        (folder / "ledger.jsonl").write_bytes(b"".join(content[:lines]))
        with pytest.raises(ValueError, match="older than the state"):
            resume_run(folder)

    @pytest.mark.slow
    def test_another_runs_ledger_is_refused(self, tiny_corpus, tmp_path):
        folder = interrupted(tiny_corpus, tmp_path / "run")
        start(tiny_corpus, tmp_path / "other").run()
        (folder / "ledger.jsonl").write_bytes((tmp_path / "other" / "ledger.jsonl").read_bytes())
        with pytest.raises(ValueError, match="another"):
            resume_run(folder)

    def test_a_state_whose_checkpoint_is_gone_is_refused(self, tiny_corpus, tmp_path):
        folder = interrupted(tiny_corpus, tmp_path / "run")
        next(folder.glob("checkpoints/round-000003*")).unlink()
        charges = charged(folder)
        with pytest.raises(ValueError, match="no checkpoint of round 3"):
            resume_run(folder)
        assert charged(folder) == charges

    def test_a_released_state_that_is_gone_is_refused(self, tiny_corpus, tmp_path):
        folder = interrupted(tiny_corpus, tmp_path / "run")
        (folder / "state.safetensors").unlink()
        before = (folder / "ledger.jsonl").read_bytes()
        with pytest.raises(ValueError, match="is gone, but rounds were released"):
            resume_run(folder)
        assert (folder / "ledger.jsonl").read_bytes() == before

    @pytest.mark.parametrize("change", [{"mode": "secure"}, {"backend": "flower"}])
    def test_an_edited_document_is_refused(self, tiny_corpus, tmp_path, change):
        """A secure run must never go on as a seeded one, nor the other way round."""
        folder = interrupted(tiny_corpus, tmp_path / "run")
        document = json.loads((folder / "experiment.json").read_text("utf-8"))
        (folder / "experiment.json").write_text(json.dumps({**document, **change}))
        with pytest.raises(ValueError, match="not the one the run was started with"):
            resume_run(folder)

    @pytest.mark.slow
    def test_from_an_older_state_rounds_are_paid_and_drawn_anew(
        self, tiny_corpus, tmp_path, monkeypatch
    ):
        """As after a power cut, or a backup: nothing that was spent comes back."""
        keys = []
        real = NOISE.gaussian
        monkeypatch.setattr(
            NOISE, "gaussian", lambda key, *rest: keys.append(key.to_bytes()) or real(key, *rest)
        )
        folder = interrupted(tiny_corpus, tmp_path / "run", after=3)
        state = folder / "state.safetensors"
        old = state.read_bytes()
        with pytest.raises(KeyboardInterrupt):
            resume_run(folder, make_backend=stopping(2)).run()
        assert charged(folder) == [(1, 1), (2, 1), (3, 1), (3, 2), (4, 1)]
        state.write_bytes(old)
        prepared = resume_run(folder)
        summary = prepared.run()
        again = (3, 3)
        assert charged(folder) == [(1, 1), (2, 1), (3, 1), (3, 2), (4, 1), again]
        # Noise is drawn as soon as an attempt is paid for, so lost attempts have drawn theirs too.
        assert len(keys) == len(set(keys)) == 6
        assert summary["charges"] == 6 and summary["rounds"] == again[0]
        assert summary["epsilon"] == prepared.components.plan.epsilon(6).value

    def test_a_damaged_state_is_refused(self, tiny_corpus, tmp_path):
        folder = interrupted(tiny_corpus, tmp_path / "run")
        content = bytearray((folder / "state.safetensors").read_bytes())
        content[-1] ^= 1
        (folder / "state.safetensors").write_bytes(bytes(content))
        with pytest.raises(ValueError, match="damaged"):
            resume_run(folder)

    def test_changed_options_are_refused(self, tiny_corpus, tmp_path):
        folder = interrupted(tiny_corpus, tmp_path / "run")
        document = json.loads((folder / "experiment.json").read_text())
        document["experiment"]["noise-multiplier"] = 5.0
        (folder / "experiment.json").write_text(json.dumps(document))
        with pytest.raises(ValueError, match="not the one the run was started with"):
            resume_run(folder)
        reseal(folder)  # of which the ledger knows nothing else
        with pytest.raises(ValueError, match="its plan is no longer the ledger's"):
            resume_run(folder)
        document["plan"]["noise_multiplier"] = 5.0
        (folder / "experiment.json").write_text(json.dumps(document))
        reseal(folder)
        with pytest.raises(ValueError, match="another plan or mode than the ledger"):
            resume_run(folder)

    @pytest.mark.slow
    @pytest.mark.parametrize("secure", [False, True])
    def test_a_corpus_prepared_anew_in_another_way_is_refused(self, tmp_path, secure):
        """Its folder and its roster are the same; words, labels and threads held out are not."""
        at, folder = tmp_path / "corpus", tmp_path / "run"
        corpus = synthesize(at, **SMALL)
        roster = corpus.view().roster
        with pytest.raises(KeyboardInterrupt):
            start(corpus, folder, secure=secure, make_backend=stopping(2)).run()
        charges, aside = charged(folder), tmp_path / "aside"
        at.rename(aside)
        assert synthesize(at, **SMALL, seed=5).view().roster == roster
        with pytest.raises(ValueError, match=r"are not those that .* was started with"):
            resume_run(folder)
        assert charged(folder) == charges
        shutil.rmtree(at)
        aside.rename(at)
        Corpus.open(at).add_roster(RosterSpec(name="later", rule="first-sorted", size=5))
        assert resume_run(folder).run()["rounds"] == 5

    @pytest.mark.slow
    def test_folders_that_hold_a_run_or_none(self, tiny_corpus, tmp_path):
        start(tiny_corpus, tmp_path / "run").run()
        with pytest.raises(ValueError, match="--resume"):
            start(tiny_corpus, tmp_path / "run")
        with pytest.raises(ValueError, match="holds no run"):
            resume_run(tmp_path)
        with pytest.raises(ValueError, match="holds no run"):
            resume_run(tmp_path / "nowhere")
        (tmp_path / "odd").mkdir()
        (tmp_path / "odd" / "experiment.json").write_text('{"format": "other", "version": 1}')
        with pytest.raises(ValueError, match="other"):
            resume_run(tmp_path / "odd")

    @pytest.mark.slow
    def test_one_process_at_a_time(self, tiny_corpus, tmp_path):
        prepared = start(tiny_corpus, tmp_path / "run")
        with pytest.raises(ValueError, match="in use by another process"):
            resume_run(tmp_path / "run")
        prepared.run()
