"""Runs from Python: described, run, resumed, loaded, read as frames, shown."""

import copy
import json
import math
import re

import pytest
from matplotlib.figure import Figure

import fedpriv as fp
from fedpriv.backends import SerialBackend
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.runs.status import run_status
from tests.harness import toy_users as dense
from tests.harness.command_line import fedpriv
from tests.harness.refusals import refuses
from tests.harness.resealed import reseal
from tests.harness.toys_of_training import assert_same

TERMS = ("δ = 0.01", "add-remove", "user", "PLD")


class TestCautions:
    """What to beware of is said on standard error, whether or not it is a terminal."""

    @pytest.mark.parametrize("secure", [False, True])
    def test_they_are_said_to_a_script_too(self, tmp_path, capsys, secure):
        given = {"public": dense.examples(0, 4), "users": dense.users(12, 4)}
        made = dense.experiment(**given).with_options({"delta": None, "rounds": 1})
        fp.run(made, tmp_path / "run", secure=secure)
        said = capsys.readouterr().err
        assert "the default δ" in said and "delta=1e-3" in said and "plan:" not in said
        assert ("4 of 4 public examples are equal" in said) != secure

    def test_not_to_those_who_ask_for_nothing(self, capsys):
        fp.run(dense.experiment().with_options({"delta": None, "rounds": 1}), progress=False)
        assert not capsys.readouterr().err

    @pytest.mark.parametrize(
        ("options", "times"),
        [({"target_epsilon": 0.01, "rounds": 300}, True), ({"target_epsilon": 100}, False)],
    )
    def test_of_a_plan_that_asks_for_noise_alone(self, capsys, options, times):
        class Ends(fp.Callback):
            def on_round(self, *_, **__):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fp.run(dense.experiment(), callbacks=[Ends()], cohort=6.0, **options)
        assert ("times as long" in capsys.readouterr().err) == times


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"target_epsilon": 0.0}, ("target_epsilon", 0.0)),
        ({"local_learning_rate": -1}, ("local_learning_rate",)),
        ({"local_learning_rates": 1}, ("'local_learning_rate'",)),
        ({"lr": 0.1}, ("'local-learning-rate'",)),
        ({"clip_norm": 1.0}, ("clip_norm", "l2_clip_norm")),
        ({"clip-norm": 1.0}, ("clip-norm", "l2-clip-norm")),
    ],
)
def test_an_option_is_named_as_it_was_given(options, named):
    with refuses(ValueError, *named):
        fp.experiment("dp-fedavg-tags", **options)


def test_options_are_spelled_as_in_python():
    experiment = fp.experiment("dp-fedavg-tags", rounds=7, l2_clip_norm=0.25)
    assert (experiment.rounds, experiment.bound.l2_clip_norm) == (7, 0.25)


class TestRun:
    @pytest.mark.slow
    def test_its_figures_are_those_of_the_folder(self, kept):
        told = json.loads((kept.path / "summary.json").read_text("utf-8"))
        assert dict(kept.summary) == {**told, "run_dir": str(kept.path)} and told["rounds"] == 3
        assert kept.epsilon.value == told["epsilon"] and kept.epsilon.delta == 0.01
        assert kept.options["bound.l2_clip_norm"] == 1.0 and kept.name == "dense"
        assert {name: a.shape for name, a in kept.params.items()} == {
            "weight": (2, 3),
            "bias": (2,),
        }
        assert verify_run(kept.path).ok

    @pytest.mark.slow
    def test_options_seed_and_a_value_give_the_same_run(self, kept):
        other = fp.run(dense.experiment(), progress=False, seed=0)
        assert_same(other.params, kept.params)
        different = fp.run(dense.experiment(), progress=False, seed=1)
        assert any((a != different.params[n]).any() for n, a in kept.params.items())

    @pytest.mark.slow
    def test_a_label_names_a_run_wherever_it_is_shown_and_changes_nothing_else(
        self, kept, tmp_path
    ):
        run = fp.run(dense.experiment(), tmp_path / "run", label="wide <b>", progress=False)
        assert (run.label, kept.label) == ("wide <b>", "dense")
        assert_same(run.params, kept.params)  # not in the root of the noise
        assert run.plan == kept.plan and run.options == kept.options
        assert run.summary["label"] == "wide <b>" and kept.summary["label"] is None
        assert "Run of wide <b> (dense)" in repr(run) and "wide &lt;b&gt;" in run._repr_html_()
        page = run.report().read_text("utf-8")
        assert "<h1>wide &lt;b&gt;</h1>" in page and "dense: A small dense model." in page
        table = fp.compare(run, kept)
        assert list(table["label"]) == ["wide <b>", "dense"]
        status = run_status(run.path)
        assert status.to_json()["label"] == "wide <b>" and verify_run(run.path).ok
        assert fp.load(run.path).save(tmp_path / "copy").label == "wide <b>"

    def test_a_name_given_to_an_experiment_is_answered_with_the_label(self):
        with refuses(ValueError, "label="):
            fp.experiment("dp-fedavg-tags", name="wide")

    @pytest.mark.slow
    def test_without_a_folder_it_goes_with_its_value(self):
        run = fp.run(dense.experiment(), rounds=1, progress=False)
        folder, other = run.folder, copy.copy(run)
        assert run.path is None and run.summary["run_dir"] is None
        assert (folder / "ledger.jsonl").is_file()
        del run
        assert other.params and folder.is_dir()
        del other
        assert not folder.exists()

    @pytest.mark.slow
    def test_it_can_be_saved(self, tmp_path):
        run = fp.run(dense.experiment(), rounds=1, progress=False)
        with pytest.raises(ValueError):
            run.report()
        saved = run.save(tmp_path / "kept")
        assert saved.path == tmp_path / "kept" and saved.epsilon == run.epsilon
        assert verify_run(saved.path).ok
        assert saved.report().read_text("utf-8").startswith("<!doctype html>")
        with pytest.raises(ValueError):
            run.save(tmp_path / "kept")

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ({"secure": True}, ("secure",)),
            ({"secure": True, "out": "x", "seed": 1}, ()),
            ({"backend": "spark"}, ("backend", "spark")),
            ({"workers": 2}, ("workers", 2, "ray")),
            ({"corpus": "here"}, ()),
            ({"progress": "no"}, ("no",)),
            ({"keep_checkpoints": 0}, (0,)),
            ({"rounds": -1}, (-1, 1)),
        ],
    )
    def test_what_does_not_fit_is_refused_before_a_folder_is_made(
        self, tmp_path, monkeypatch, arguments, said
    ):
        monkeypatch.chdir(tmp_path)
        with refuses(ValueError, *said):
            fp.run(dense.experiment(), **arguments)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.slow
    def test_a_secure_run_has_no_diagnostics(self, tmp_path):
        run = fp.run(dense.experiment(), tmp_path / "run", secure=True, rounds=1, progress=False)
        assert len(run.diagnostics()) == 0 and "accuracy" in run.diagnostics().columns
        assert "simulated" not in repr(run) and len(run.rounds()) == 1


class TestResume:
    @pytest.fixture
    def interrupted(self, tmp_path, monkeypatch):
        """The folder of a run of three rounds that Ctrl-C ended in the second."""
        real = SerialBackend.sum

        def second_fails(self, request, attempt, cohort):
            if attempt.round_num == 2:
                raise KeyboardInterrupt
            return real(self, request, attempt, cohort)

        with monkeypatch.context() as patched:
            patched.setattr(SerialBackend, "sum", second_fails)
            with pytest.raises(KeyboardInterrupt) as caught:
                fp.run(dense.experiment(), tmp_path / "run", progress=False)
        (note,) = caught.value.__notes__
        assert note == f"interrupted; continue with fedpriv.resume({str(tmp_path / 'run')!r})"
        return tmp_path / "run"

    @pytest.mark.slow
    def test_it_goes_on_and_the_lost_attempt_stays_spent(self, interrupted):
        under_way = fp.load(interrupted)
        assert under_way.summary == {} and list(under_way.rounds().index) == [1]
        assert "1 of 3 rounds" in repr(under_way)
        run = fp.resume(interrupted, experiment=dense.experiment(), progress=False)
        assert (run.summary["rounds"], run.summary["charges"]) == (2, 3)
        assert list(run.rounds()["attempt"]) == [1, 2]
        assert run.epsilon.value > under_way.epsilon.value

    def test_an_experiment_without_a_name_must_be_given_again(self, interrupted):
        with refuses(ValueError, "fedpriv.resume", "experiment="):
            fp.resume(interrupted, progress=False)

    def test_a_function_stands_for_what_it_returns(self, interrupted):
        assert fp.resume(interrupted, experiment=dense.experiment).summary["rounds"] == 2
        assert fp.run(dense.experiment, rounds=1).summary["rounds"] == 1
        for given in (lambda: 7, 7):
            with refuses(ValueError, 7, "Experiment"):
                fp.run(given)
            with refuses(ValueError, 7, "Experiment"):
                fp.resume(interrupted, experiment=given)

    def test_options_that_are_not_used_are_said(self, interrupted, capsys):
        other = dense.experiment().with_options({"rounds": 80, "local-learning-rate": 0.3})
        assert fp.resume(interrupted, experiment=other).summary["rounds"] == 2
        [said] = [line for line in capsys.readouterr().err.splitlines() if "not used" in line]
        assert "rounds=80 (it is 3)" in said and "local_learning_rate=0.3" in said
        assert "noise" not in said

    def test_of_a_run_without_a_name_a_name_is_answered_with_what_to_give(self, interrupted):
        done = fedpriv("run", dense.NAME, "--resume", interrupted)
        assert done.exit_code == 2 and "fedpriv.resume(" in done.stderr
        assert "experiment=" in done.stderr

    def test_another_experiment_is_refused(self, interrupted):
        other = fp.experiment("dp-fedavg-tags")
        with refuses(ValueError, "dense", "dp-fedavg-tags"):
            fp.resume(interrupted, experiment=other, progress=False)

    def test_workers_need_a_name(self):
        with pytest.raises(ValueError):
            fp.run(dense.experiment(), backend="ray", workers=1, progress=False)


@pytest.mark.slow
def test_what_is_released_and_what_is_not_are_two_frames(kept):
    released, diagnosed = kept.rounds(), kept.diagnostics()
    assert list(released.index) == [1, 2, 3] and released.index.name == "round_num"
    assert released["epsilon"].is_monotonic_increasing
    assert released["epsilon"].iloc[-1] == kept.epsilon.value
    assert set(released["delta"]) == {0.01} and released["accuracy_public"].dtype == float
    assert "seconds" in diagnosed and "seconds" not in released
    assert released.attrs["privacy"] == kept.statement.headline
    assert not diagnosed.attrs["covered_by_epsilon"]


@pytest.mark.slow
def test_a_curve_of_rounds_is_drawn_where_not_every_round_is_evaluated(tiny_corpus):
    options = {"rounds": 12, "eval_every": 4, "cohort": 6, "noise_multiplier": 1.0}
    where = tiny_corpus.directory
    run = fp.run("dp-fedavg-tags", corpus=where, delta=1e-3, progress=False, **options)
    (line,) = run.rounds().plot(y="epsilon", ax=Figure().add_subplot()).get_lines()
    assert list(line.get_data()[0]) == [4, 8, 12]
    every = run.rounds(every=True)
    assert list(every.index) == list(range(1, 13)) == list(run.diagnostics(every=True).index)
    assert every["accuracy_public"].notna().sum() == 3  # what was not measured is not filled in
    assert every["epsilon"].is_monotonic_increasing and every["epsilon"].notna().all()
    assert (every["epsilon_charges"] >= every.index).all()


@pytest.mark.slow
def test_runs_side_by_side(kept):
    other = fp.run(dense.experiment(), noise_multiplier=2, progress=False)
    table = fp.compare(kept.path, other)
    assert list(table.index) == ["dense", "dense"]
    assert table["epsilon"].iloc[0] > table["epsilon"].iloc[1]
    assert {"delta", "relation", "unit", "accountant", "simulated", "synthetic"} <= set(table)
    assert len(kept.table()) == 1
    # What no run has, and what is the same of both, is left out.
    assert {"users", "corpus", "gain", "gap_closed", "no_meaningful_protection"}.isdisjoint(table)
    without = fp.run(dense.experiment(), noise="none", bound="none", progress=False)
    assert list(fp.compare(kept, without)["epsilon"]) == [kept.epsilon.value, math.inf]
    with pytest.raises(ValueError):
        fp.compare()


class TestShown:
    def test_it_says_its_figures_and_its_promise(self, kept):
        text, page = repr(kept), kept._repr_html_()
        for said in ("SYNTHETIC", "simulated ε = ", *TERMS, "3 of 3 rounds", "Tuning"):
            assert said in text and said in page
        assert "<script" not in page and page.count("<div") == page.count("</div>")

    def test_epsilon_is_rounded_up(self, kept):
        shown = float(re.search(r"ε = ([\d.]+)", repr(kept))[1])
        assert kept.epsilon.value <= shown < kept.epsilon.value + 1e-4

    def test_what_epsilon_does_not_cover_stands_beside_it(self, kept, tmp_path):
        run = kept.save(tmp_path / "copy")
        private = {"source": "private", "description": "word counts"}
        reseal(run.path, side_information=private)
        told = fp.load(run.path)
        said = "does NOT cover: side information taken from rostered users"
        for shown in (repr(told), told._repr_html_(), str(told.statement)):
            assert said in " ".join(shown.split())

    def test_names_from_a_folder_cannot_become_markup(self, kept, tmp_path):
        run = kept.save(tmp_path / "copy")
        reseal(run.path, name="<script>alert(1)</script>")
        assert "<script" not in fp.load(run.path)._repr_html_()
