"""`fedpriv list` and `fedpriv run` as a user types them."""

import json

import pytest

from fedpriv import json_lines
from fedpriv.cli.run import QUICK, shorter
from fedpriv.experiments.load import find_experiments, load_experiment
from fedpriv.experiments.settings import FEWEST_ROUNDS
from fedpriv.report.comparison.groups import differences, read_groups
from fedpriv.report.head import provenance_of
from fedpriv.report.run_record import read_run
from tests.cli.typed import SMALL, figures, run
from tests.harness.command_line import fedpriv, refusal

FIGURES = {"accuracy", "recall_at_5", "seconds_per_round", "corpus", "synthetic", "run_dir"}


@pytest.fixture
def train(tiny_corpus, tmp_path):
    """Types `fedpriv run` for the tiny corpus and the folder `run`."""

    def typed(*arguments):
        return run("run", *arguments, "--corpus", tiny_corpus.directory, "--out", tmp_path / "run")

    return typed


def test_every_experiment_is_listed():
    shown = run("list").stdout
    told = figures("list")
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

    def test_in_words_it_says_synthetic_where_everything_is_and_first_and_last_round(
        self, train, tmp_path
    ):
        where, shown = tmp_path / "run", train("dp-fedavg-tags", *SMALL)
        before, *_ = shown.stderr.partition(": round 0")
        assert f"in {where}:" in before and "SYNTHETIC corpus tiny-synthetic" in before
        for said in ("ε = ", "δ = ", "add-remove", "not covered by ε", f"{where}/report.html",
                     "SYNTHETIC corpus tiny-synthetic, 60 users"):  # fmt: skip
            assert said in shown.stdout
        assert len(shown.stdout.splitlines()) <= 6 and ": round " not in shown.stdout
        lines = [line for line in shown.stderr.splitlines() if ": round " in line]
        assert "round 0 of 3, ε ≤ 0.00" in lines[0]
        assert "round 3 of 3, ε ≤ " in lines[-1] and ", accuracy" in lines[-1]
        assert all(line.isprintable() for line in lines)

    def test_without_privacy_it_says_so_and_an_option_may_be_none(self, train, tmp_path):
        assert "ε = ∞" in train("fedavg-tags", "--rounds", 2, "--delta", "none").stdout
        assert json.loads((tmp_path / "run" / "summary.json").read_text())["epsilon"] is None
        document = json.loads((tmp_path / "run" / "experiment.json").read_text())
        assert document["experiment"]["delta"] is None
        assert "--delta FLOAT" in " ".join(run("run", "--help").stdout.split())

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
            "cohort": 6.0,
            "seed": 4,
            "task.users": 30,
            "precondition": "both",
            "local.epochs": 2,
            "precondition.side_information": "frequency",
            "task.roster": "tiny-60",
            "target_epsilon": None,
        }
        assert {name: options[name] for name in expected} == expected
        assert (
            document["plan"]["mechanism"]["recorded"]["num_users"] == 30
            and document["corpus"]["num_users"] == 30
        )

    @pytest.mark.slow
    def test_the_corpus_may_come_from_the_environment_and_the_folder_from_the_clock(
        self, tiny_corpus, tmp_path, monkeypatch
    ):
        monkeypatch.setenv("FEDPRIV_DATA", str(tiny_corpus.directory))
        monkeypatch.chdir(tmp_path)
        folders = {figures("run", "dp-fedavg-tags", *SMALL)["run_dir"] for _ in range(2)}
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
def test_a_resumed_run_takes_no_other_option(tmp_path, more):
    assert "--resume" in refusal("run", "--resume", tmp_path, *more)


@pytest.mark.slow
@pytest.mark.parametrize(("given", "rounds"), [((), QUICK), (("--rounds", "3"), 3)])
def test_quick_is_a_run_of_few_rounds_or_of_those_given(tiny_corpus, tmp_path, given, rounds):
    few = ["run", "dp-fedavg-tags", "--quick", *given, *SMALL[2:], "--out", tmp_path / "r"]
    summary = figures(*few, "--corpus", tiny_corpus.directory)
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
        assert shorter(long, {}).get(option, planned) == most


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
    found = small.with_options(shorter(small, given)).options()
    assert (found["steps"], found["epochs"]) == length


def test_rounds_of_a_centralised_experiment_are_said_to_be_steps():
    assert "-s steps=10" in refusal("run", "dp-sgd-conversions", "--rounds", "10")


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


BAD = {
    "no experiment": ([], "fedpriv list"),
    "unknown": (["adadps-tag"], "adadps-tags"),
    "module": (["no.such:thing"], "'no'"),
    "cohort above users": (["dp-fedavg-tags", "--cohort", "61"], "60 users"),
    "rounds": (["dp-fedavg-tags", "--rounds", "0"], "rounds 0"),
    "nan": (["dp-fedavg-tags", "--delta", "nan"], "delta"),
    "roster": (["dp-fedavg-tags", "--roster", "nobody"], "nobody"),
    "set": (["dp-fedavg-tags", "--set", "bound"], "NAME=VALUE"),
    "set unknown": (["dp-fedavg-tags", "--set", "bnd=clip"], "bound"),
    "set twice": (
        ["dp-fedavg-tags", "--set", "cohort=5", "-s", "rounds=2", "-s", "cohort = 6"],
        "cohort",
    ),
    "flag and set": (["dp-fedavg-tags", "--cohort", "5", "--set", "cohort=6"], "cohort"),
    "pays for nothing": (["dp-fedavg-tags", *SMALL, "--target-epsilon", "0.01"], "0.01"),
    "set type": (["dp-fedavg-tags", "--set", "rounds=many"], "many"),
    "backend": (["dp-fedavg-tags", "--backend", "spark"], "spark"),
    "serial workers": (["dp-fedavg-tags", "--workers", "2"], "backend ray"),
    "threads": (["dp-fedavg-tags", "--backend", "threads"], "'serial', 'ray'"),
    "no workers": (["dp-fedavg-tags", "--backend", "ray", "--workers", "0"], "workers 0"),
    "serial gpus": (["dp-fedavg-tags", "--gpus-per-worker", "1"], "backend ray"),
    "keep": (["dp-fedavg-tags", "--keep-checkpoints", "0"], "'0'"),
    "secure seed": (["dp-fedavg-tags", "--secure", "--seed", "1"], "(got 1)"),
    "corpus": (["dp-fedavg-tags", "--corpus", "/no/such/place"], "/no/such/place"),
    "markup": (["[bold]tags"], "[bold]tags"),
}


class TestErrors:
    @pytest.mark.slow
    @pytest.mark.parametrize(("arguments", "said"), BAD.values(), ids=BAD)
    def test_they_are_one_clear_line_and_leave_nothing_behind(
        self, tiny_corpus, tmp_path, monkeypatch, arguments, said
    ):
        if "--corpus" not in arguments:
            monkeypatch.setenv("FEDPRIV_DATA", str(tiny_corpus.directory))
        out = tmp_path / "run"
        line = refusal("run", *arguments, "--out", out, "--json")
        assert line.startswith("error: ") and said in line
        assert not out.exists()

    @pytest.mark.parametrize("given", [["--out", ""], ["--out="], ["--out", "  "], ["--out=\t"]])
    @pytest.mark.parametrize("command", [["run", "dp-fedavg-tags", *SMALL], ["data", "synth"]])
    def test_an_empty_name_is_not_the_current_folder(
        self, tiny_corpus, tmp_path, monkeypatch, command, given
    ):
        monkeypatch.setenv("FEDPRIV_DATA", str(tiny_corpus.directory))
        monkeypatch.chdir(tmp_path)
        assert "--out" in refusal(*command, *given)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("given", [["--title", ""], ["--title="], ["--title", " "]])
    def test_a_text_may_be_empty(self, tmp_path, given):
        """The error is of the model that is not there, and not of the text."""
        gone = tmp_path / "gone"
        assert str(gone) in refusal("predict", gone, "--text", "", *given)

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["--device", "cuda:0"], "cuda:0"),
            (["--device", "tpu"], "'tpu'"),
            (["--backend", "ray", "--device", "cuda:0"], "gpus_per_worker"),
        ],
    )
    def test_devices_that_cannot_be_had(self, tiny_corpus, tmp_path, monkeypatch, arguments, says):
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        out = tmp_path / "run"
        asked = ["dp-fedavg-tags", "--corpus", tiny_corpus.directory, *SMALL, *arguments]
        done = fedpriv("run", *asked, "--out", out, "--json")
        assert done.exit_code == 2 and says in done.stderr
        assert not out.exists()

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["run", "--rounds", "many"], "'many' is not a valid integer"),
            (["run", "--rounds", "none"], "'none' is not a valid integer"),
            (["run", "--delta", "nothing"], "'nothing' is not a valid float, or none"),
            (["run", "--no-such"], "--no-such"),
            (["walk"], "'walk'"),
            (["run", "a", "b"], "(b)"),
        ],
    )
    def test_what_is_no_command_at_all(self, arguments, said):
        done = fedpriv(*arguments)
        assert done.exit_code == 2 and "Traceback" not in done.stderr
        assert said in " ".join(done.stderr.split())

    def test_a_folder_that_holds_a_run(self, tiny_corpus, tmp_path):
        out = tmp_path / "run"
        given = ("--corpus", tiny_corpus.directory, *SMALL, "--out", out, "--json")
        run("run", "dp-fedavg-tags", *given)
        assert f"--resume {out}" in refusal("run", "dp-fedavg-tags", *given)
