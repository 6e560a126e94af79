"""`fedpriv list` and `fedpriv run` as a user types them."""

import json
from pathlib import Path

import pytest

from fedpriv import json_lines
from fedpriv.backends import SerialBackend
from fedpriv.cli.run import QUICK, shortened
from fedpriv.experiments.load import find_experiments, load_experiment
from fedpriv.experiments.settings import FEWEST_ROUNDS
from fedpriv.report.comparison.groups import differences, read_groups
from fedpriv.report.head import provenance_of
from fedpriv.report.run_record import read_run
from tests.cli.typed import SMALL, main, run

FIGURES = {"accuracy", "recall_at_5", "seconds_per_round", "corpus", "synthetic", "run_dir"}


@pytest.fixture
def train(tiny_corpus, tmp_path):
    """Types `fedpriv run` for the tiny corpus and the folder `run`."""

    def typed(*arguments):
        return run("run", *arguments, "--corpus", tiny_corpus.directory, "--out", tmp_path / "run")

    return typed


def test_every_experiment_is_listed():
    shown = run("list").stdout
    told = json.loads(run("list", "--json").stdout)
    assert {entry["name"] for entry in told} == set(find_experiments())
    assert all(entry["description"] and "serial" in entry["backends"] for entry in told)
    assert all(name in shown for name in find_experiments())


class TestRun:
    def test_json_has_the_figures(self, train, tmp_path):
        told = json.loads(train("dp-fedavg-tags", *SMALL, "--json").stdout)
        assert set(told) >= FIGURES
        assert (told["rounds"], told["users"], told["delta"]) == (3, 60, 0.001)
        assert (told["corpus"], told["synthetic"]) == ("tiny-synthetic", True)
        assert 0 <= told["accuracy"] <= 1 and 0 <= told["recall_at_5"] <= 1
        assert 0 < told["epsilon"] < 20 and told["seconds_per_round"] > 0
        assert (told["relation"], told["unit"], told["accountant"]) == ("add-remove", "user", "PLD")
        assert told.pop("run_dir") == str(tmp_path / "run")
        assert told == json.loads((tmp_path / "run" / "summary.json").read_text())
        assert (tmp_path / "run" / "report.html").stat().st_size > 1000

    def test_in_words_it_says_synthetic_and_where_everything_is(
        self, tiny_corpus, tmp_path, monkeypatch, capsys
    ):
        given = ("--corpus", tiny_corpus.directory, "--out", tmp_path / "run")
        assert main(monkeypatch, "run", "dp-fedavg-tags", *SMALL, *given) == 0
        where, shown = tmp_path / "run", capsys.readouterr()
        before, *_ = shown.err.partition(": round 0")
        assert f"in {where}:" in before and "SYNTHETIC corpus tiny-synthetic" in before
        for said in ("ε = ", "δ = ", "add-remove", "not covered by ε", f"{where}/report.html",
                     "SYNTHETIC corpus tiny-synthetic, 60 users"):  # fmt: skip
            assert said in shown.out
        assert len(shown.out.splitlines()) <= 6

    def test_without_privacy_it_says_so(self, train, tmp_path):
        assert "ε = ∞" in train("fedavg-tags", "--rounds", 2, "--delta", 0.001).stdout
        assert json.loads((tmp_path / "run" / "summary.json").read_text())["epsilon"] is None

    @pytest.mark.slow
    def test_options_reach_the_experiment(self, train, tmp_path):
        train(
            *("adadps-tags", *SMALL, "--seed", 4, "--users", 30, "--precondition", "both"),
            *("--set", "local-epochs=2", "-s", "target-epsilon=none", "--roster", "tiny-60"),
            *("-s", "side-information=frequency", "--json"),
        )
        document = json.loads((tmp_path / "run" / "experiment.json").read_text())
        options = document["experiment"]
        expected = {
            "rounds": 3,
            "noise.multiplier": 1.0,
            "delta": 0.001,
            "sampling.cohort": 6.0,
            "seed": 4,
            "task.users": 30,
            "precondition": "both",
            "local.epochs": 2,
            "precondition.side_information": "frequency",
            "task.roster": "tiny-60",
            "noise.target_epsilon": None,
        }
        assert {name: options[name] for name in expected} == expected
        assert document["plan"]["num_users"] == 30 and document["corpus"]["num_users"] == 30

    @pytest.mark.slow
    def test_the_corpus_may_come_from_the_environment_and_the_folder_from_the_clock(
        self, tiny_corpus, tmp_path, monkeypatch
    ):
        monkeypatch.setenv("FEDPRIV_DATA", str(tiny_corpus.directory))
        monkeypatch.chdir(tmp_path)
        folders = {
            json.loads(run("run", "dp-fedavg-tags", *SMALL, "--json").stdout)["run_dir"]
            for _ in range(2)
        }
        assert len(folders) == 2
        assert all((tmp_path / folder / "summary.json").is_file() for folder in folders)
        assert all(folder.startswith("runs/dp-fedavg-tags-") for folder in folders)

    def test_secure_runs(self, train, tmp_path):
        shown = train("dp-fedavg-tags", *SMALL, "--secure").stdout
        assert "simulated" not in shown and "released" in shown
        assert not (tmp_path / "run" / "diagnostics.jsonl").exists()

    @pytest.mark.slow
    @pytest.mark.parametrize(("keep", "left"), [("1", {10, 12}), ("all", set(range(1, 13)))])
    def test_checkpoints_are_kept_as_asked(self, train, tmp_path, keep, left):
        train("dp-fedavg-tags", *SMALL, "--rounds", 12, "--keep-checkpoints", keep, "--json")
        files = (tmp_path / "run" / "checkpoints").glob("*.safetensors")
        assert {int(file.stem.split("-")[1]) for file in files} == left


class TestResume:
    @pytest.mark.slow
    def test_an_interrupted_run_says_how_and_goes_on(
        self, tiny_corpus, tmp_path, monkeypatch, capsys
    ):
        folder, real = tmp_path / "run", SerialBackend.sum

        def interrupted(self, request, attempt, cohort):
            if (attempt.round_num, attempt.number) == (2, 1):
                raise KeyboardInterrupt
            return real(self, request, attempt, cohort)

        monkeypatch.setattr(SerialBackend, "sum", interrupted)
        given = ("--corpus", tiny_corpus.directory, *SMALL, "--out", folder, "--json")
        assert main(monkeypatch, "run", "dp-fedavg-tags", *given) == 130
        assert f"--resume {folder}" in capsys.readouterr().err
        summary = json.loads(run("run", "--resume", folder, "--json").stdout)
        assert (summary["rounds"], summary["charges"]) == (2, 3)
        lines = json_lines.read(Path(folder) / "rounds.jsonl")
        assert [(line["round_num"], line["attempt"]) for line in lines] == [(1, 1), (2, 2)]
        assert json.loads(run("run", "--resume", folder, "--json").stdout) == summary

    @pytest.mark.parametrize(
        "more",
        [
            ["--out", "x"],
            ["--rounds", "9"],
            ["--noise-multiplier", "2"],
            ["--seed", "1"],
            ["--secure"],
            ["--corpus", "x"],
            ["--set", "bound=clip"],
        ],
    )
    def test_it_takes_nothing_beside_it(self, monkeypatch, capsys, tmp_path, more):
        assert main(monkeypatch, "run", "--resume", tmp_path, *more) == 2
        assert "--resume" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("given", "rounds"), [((), QUICK), (("--rounds", "3"), 3)])
def test_quick_is_a_run_of_few_rounds_or_of_those_given(tiny_corpus, tmp_path, given, rounds):
    few = ["run", "dp-fedavg-tags", "--quick", *given, *SMALL[2:], "--out", tmp_path / "r"]
    summary = json.loads(run(*few, "--json", "--corpus", tiny_corpus.directory).stdout)
    assert summary["rounds"] == summary["rounds_planned"] == rounds


def test_quick_never_makes_a_run_longer():
    """Rounds chosen from the data's size are never fewer than `QUICK`."""
    assert QUICK <= FEWEST_ROUNDS
    for name, option, planned, most in (
        ("dp-fedavg-tags", "rounds", 3, 3),
        ("dp-fedavg-tags", "rounds", 300, QUICK),
        ("agd-tags", "iterations", 5, 5),
        ("agd-tags", "iterations", 60, QUICK),
        ("bolt-on-tags", "passes", 5, 1),
    ):
        long = load_experiment(name).with_options({option: planned})
        assert shortened(long, {}).options()[option] == most


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "given", "length"),
    [
        ({}, {}, (QUICK, None)),
        ({"epochs": 1.0}, {"epochs": 1.0}, (None, 1.0)),
        ({"steps": 50}, {"steps": 50}, (50, None)),
        ({"epochs": 1.0}, {}, (5, None)),  # of 1,200 examples, in batches of 250
    ],
)
def test_quick_is_of_few_steps_where_training_is_centralised(options, given, length):
    small = load_experiment("dp-sgd-conversions").with_options({"log-rows": 1500, **options})
    found = shortened(small, given).options()
    assert (found["steps"], found["epochs"]) == length


def test_rounds_of_a_centralised_experiment_are_said_to_be_steps(monkeypatch, capsys):
    assert main(monkeypatch, "run", "dp-sgd-conversions", "--rounds", "10") == 2
    assert "-s steps=10" in capsys.readouterr().err


@pytest.mark.slow
def test_the_device_that_was_asked_for_is_in_the_folder_the_report_and_a_comparison(
    tiny_corpus, tmp_path
):
    """It trains many users at once, and its models differ in their last bits."""
    for name, asked in (("plain", ()), ("device", ("--device", "cpu"))):
        given = (*SMALL, *asked, "--corpus", tiny_corpus.directory, "--out", tmp_path / name)
        run("run", "dp-fedavg-tags", *given, "--json")
    lines = [json_lines.read(tmp_path / name / "backends.jsonl") for name in ("plain", "device")]
    same = {"first_round": 1, "name": "serial", "workers": 1, "devices": ["cpu"]}
    assert lines == [[same], [{**same, "device": "cpu"}]]
    plain, device = (read_run(tmp_path / name) for name in ("plain", "device"))
    assert (plain.backend, device.backend) == ("serial", "serial, device cpu")
    assert "serial, device cpu" in (tmp_path / "device" / "report.html").read_text("utf-8")
    commands = [provenance_of(found).command for found in (plain, device)]
    assert ["--device cpu" in str(command) for command in commands] == [False, True]
    groups = read_groups([tmp_path / "plain", tmp_path / "device"])
    assert differences([[group] for group in groups]) == {"device": ["none", "cpu"]}
