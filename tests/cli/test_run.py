"""`fedpriv list` and `fedpriv run` as a user types them."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedpriv import cli, json_lines
from fedpriv.backends import SerialBackend
from fedpriv.experiments.catalogue import find_experiments

ISSUED = {
    "accuracy",
    "recall_at_5",
    "epsilon",
    "delta",
    "rounds",
    "users",
    "seconds_per_round",
    "corpus",
    "synthetic",
    "run_dir",
}
SMALL = ("--rounds", "3", "--noise-multiplier", "1", "--delta", "0.001", "--cohort", "6")


def run(*arguments):
    result = CliRunner().invoke(cli.app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def main(monkeypatch, *arguments):
    """Run the installed command's own entry point; return its exit status."""
    monkeypatch.setattr(sys, "argv", ["fedpriv", *map(str, arguments)])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return caught.value.code


class TestList:
    def test_every_experiment_is_listed(self):
        shown = run("list").stdout
        told = json.loads(run("list", "--json").stdout)
        assert {entry["name"] for entry in told} == set(find_experiments())
        assert all(entry["description"] and "serial" in entry["carriers"] for entry in told)
        assert all(name in shown for name in find_experiments())

    def test_help_names_every_option_of_the_issue(self):
        shown = CliRunner().invoke(cli.app, ["run", "--help"], terminal_width=200).stdout
        for option in (
            "corpus",
            "roster",
            "users",
            "cohort",
            "rounds",
            "noise-multiplier",
            "target-epsilon",
            "delta",
            "seed",
            "engine",
            "out",
            "resume",
            "json",
        ):
            assert f"--{option}" in shown


class TestRun:
    def test_json_has_the_figures_of_the_issue(self, tiny_corpus, tmp_path):
        result = run(
            "run",
            "dp-fedavg-tags",
            "--corpus",
            tiny_corpus.directory,
            *SMALL,
            "--out",
            tmp_path / "run",
            "--json",
        )
        told = json.loads(result.stdout)
        assert set(told) >= ISSUED
        assert (told["rounds"], told["users"], told["delta"]) == (3, 60, 0.001)
        assert (told["corpus"], told["synthetic"]) == ("tiny-synthetic", True)
        assert 0 <= told["accuracy"] <= 1 and 0 <= told["recall_at_5"] <= 1
        assert 0 < told["epsilon"] < 20 and told["seconds_per_round"] > 0
        assert (told["relation"], told["unit"], told["accountant"]) == ("add-remove", "user", "PLD")
        assert told["run_dir"] == str(tmp_path / "run")
        assert told == json.loads((tmp_path / "run" / "summary.json").read_text())
        assert (tmp_path / "run" / "report.html").stat().st_size > 1000

    def test_in_words_it_says_synthetic_and_where_everything_is(self, tiny_corpus, tmp_path):
        result = run(
            "run",
            "dp-fedavg-tags",
            "--corpus",
            tiny_corpus.directory,
            *SMALL,
            "--out",
            tmp_path / "run",
        )
        assert result.output.count("SYNTHETIC corpus tiny-synthetic") == 2  # before and after
        for said in (
            "ε = ",
            "δ = ",
            "add-remove",
            "not covered by ε",
            "report.html",
            str(tmp_path / "run"),
        ):
            assert said in result.stdout

    def test_without_privacy_it_says_so(self, tiny_corpus, tmp_path):
        result = run(
            "run",
            "fedavg-tags",
            "--corpus",
            tiny_corpus.directory,
            "--rounds",
            2,
            "--delta",
            0.001,
            "--out",
            tmp_path / "run",
        )
        assert "no privacy (ε = ∞)" in result.stdout
        told = json.loads((tmp_path / "run" / "summary.json").read_text())
        assert told["epsilon"] is None

    def test_options_reach_the_experiment(self, tiny_corpus, tmp_path):
        run(
            "run",
            "adadps-tags",
            "--corpus",
            tiny_corpus.directory,
            *SMALL,
            "--seed",
            4,
            "--users",
            30,
            "--precondition",
            "both",
            "--bound",
            "normalise",
            "--inputs",
            "unit-norm",
            "--server-optimizer",
            "adam",
            "--aggregate",
            "none",
            "--set",
            "local-epochs=2",
            "-s",
            "normalise-regulariser=0.1",
            "-s",
            "side-information=frequency",
            "-s",
            "target-epsilon=none",
            "--roster",
            "tiny-60",
            "--out",
            tmp_path / "run",
            "--json",
        )
        document = json.loads((tmp_path / "run" / "experiment.json").read_text())
        options = document["experiment"]
        expected = {
            "rounds": 3,
            "noise-multiplier": 1.0,
            "delta": 0.001,
            "cohort": 6.0,
            "seed": 4,
            "users": 30,
            "precondition": "both",
            "bound": "normalise",
            "inputs": "unit-norm",
            "server-optimizer": "adam",
            "aggregate": "none",
            "local-epochs": 2,
            "normalise-regulariser": 0.1,
            "side-information": "frequency",
            "roster": "tiny-60",
            "target-epsilon": None,
        }
        assert {name: options[name] for name in expected} == expected
        assert document["plan"]["num_users"] == 30 and document["corpus"]["num_users"] == 30

    def test_a_target_is_calibrated_and_kept(self, tiny_corpus, tmp_path):
        result = run(
            "run",
            "dp-fedavg-tags",
            "--corpus",
            tiny_corpus.directory,
            "--rounds",
            2,
            "--target-epsilon",
            3,
            "--delta",
            0.001,
            "--out",
            tmp_path / "run",
            "--json",
        )
        assert 2.99 < json.loads(result.stdout)["epsilon"] <= 3.0

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

    def test_secure_runs(self, tiny_corpus, tmp_path):
        result = run(
            "run",
            "dp-fedavg-tags",
            "--corpus",
            tiny_corpus.directory,
            *SMALL,
            "--secure",
            "--out",
            tmp_path / "run",
        )
        assert "secure" in result.stdout and "outside the roster" in result.stdout
        assert not (tmp_path / "run" / "diagnostics.jsonl").exists()

    @pytest.mark.parametrize(("keep", "left"), [("1", {10, 12}), ("all", set(range(1, 13)))])
    def test_checkpoints_are_kept_as_asked(self, tiny_corpus, tmp_path, keep, left):
        run(
            "run",
            "dp-fedavg-tags",
            "--corpus",
            tiny_corpus.directory,
            *SMALL,
            "--rounds",
            12,
            "--keep-checkpoints",
            keep,
            "--out",
            tmp_path / "run",
            "--json",
        )
        found = {
            int(file.stem.split("-")[1])
            for file in (tmp_path / "run" / "checkpoints").glob("*.safetensors")
        }
        assert found == left


class TestResume:
    def test_an_interrupted_run_says_how_and_goes_on(
        self, tiny_corpus, tmp_path, monkeypatch, capsys
    ):
        folder, real, calls = tmp_path / "run", SerialBackend.partial_sum, []

        def interrupted(self, **arguments):
            calls.append(arguments["round_num"])
            if len(calls) == 2:
                raise KeyboardInterrupt
            return real(self, **arguments)

        monkeypatch.setattr(SerialBackend, "partial_sum", interrupted)
        status = main(
            monkeypatch,
            "run",
            "dp-fedavg-tags",
            "--corpus",
            tiny_corpus.directory,
            *SMALL,
            "--out",
            folder,
            "--json",
        )
        assert status == 130
        told = "".join(capsys.readouterr().err.split())
        assert f"fedprivrun--resume{folder}" in told
        summary = json.loads(run("run", "--resume", folder, "--json").stdout)
        assert (summary["rounds"], summary["charges"]) == (2, 3)
        lines = json_lines.read(Path(folder) / "rounds.jsonl")
        assert [(line["round_num"], line["attempt"]) for line in lines] == [(1, 1), (2, 2)]
        assert json.loads(run("run", "--resume", folder, "--json").stdout) == summary

    @pytest.mark.parametrize(
        "more",
        [
            ["dp-fedavg-tags"],
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
        assert "give it alone" in capsys.readouterr().err


BAD = {
    "no experiment": ([], "fedpriv list"),
    "unknown": (["adadps-tag"], "did you mean 'adadps-tags'"),
    "module": (["no.such:thing"], "there is no module 'no'"),
    "cohort": (["dp-fedavg-tags", "--cohort", "0"], "cohort"),
    "cohort above users": (["dp-fedavg-tags", "--cohort", "61"], "60 users"),
    "rounds": (["dp-fedavg-tags", "--rounds", "0"], "rounds 0 must be at least 1"),
    "noise": (["dp-fedavg-tags", "--noise-multiplier", "0"], "noise-multiplier 0.0 must be"),
    "negative": (["dp-fedavg-tags", "--target-epsilon", "-1"], "target-epsilon -1.0"),
    "nan": (["dp-fedavg-tags", "--delta", "nan"], "delta"),
    "delta": (["dp-fedavg-tags", "--delta", "1.5"], "delta"),
    "users": (["dp-fedavg-tags", "--users", "0"], "users"),
    "roster": (["dp-fedavg-tags", "--roster", "nobody"], "nobody"),
    "precondition": (["dp-fedavg-tags", "--precondition", "global"], "scale-then-privatise"),
    "bound": (["dp-fedavg-tags", "--bound", "none"], "bound"),
    "set": (["dp-fedavg-tags", "--set", "bound"], "NAME=VALUE"),
    "set unknown": (["dp-fedavg-tags", "--set", "bnd=clip"], "did you mean 'bound'"),
    "set type": (["dp-fedavg-tags", "--set", "rounds=many"], "many"),
    "set no axis": (["dp-fedavg-tags", "--set", "local-batch-size=0"], "local-batch-size 0 must"),
    "engine": (["dp-fedavg-tags", "--engine", "spark"], "spark"),
    "serial workers": (["dp-fedavg-tags", "--workers", "2"], "--workers 2 is for several workers"),
    "no threads": (["dp-fedavg-tags", "--engine", "threads", "--workers", "0"], "--workers 0"),
    "gpu threads": (
        ["dp-fedavg-tags", "--engine", "threads", "--gpus-per-worker", "1"],
        "use --engine ray",
    ),
    "keep": (["dp-fedavg-tags", "--keep-checkpoints", "0"], "'0'"),
    "secure seed": (["dp-fedavg-tags", "--secure", "--seed", "1"], "--secure takes no seed"),
    "corpus": (["dp-fedavg-tags", "--corpus", "/no/such/place"], "/no/such/place"),
    "markup": (["[bold]tags"], "[bold]tags"),
}


DENSE = """
import numpy as np
from torch import nn
from fedpriv.experiments.experiment import Experiment
from fedpriv.training.local.module import ArrayExamples
from fedpriv.tasks.module_task import ModuleTask


def experiment():
    users = {name: ArrayExamples(x=np.ones((2, 3), "f4"), y=np.array([0, 1])) for name in "abcd"}
    return Experiment(
        name="dense", description="", noise_multiplier=1.0, cohort=2.0, delta=0.01, rounds=1,
        task=lambda experiment, corpus: ModuleTask(
            name="dense", module=lambda: nn.Linear(3, 2), loss=nn.functional.cross_entropy,
            users=users, synthetic=True,
        ),
    )
"""


class TestErrors:
    @pytest.mark.parametrize(("arguments", "said"), BAD.values(), ids=BAD)
    def test_they_are_one_clear_line_and_leave_nothing_behind(
        self, tiny_corpus, tmp_path, monkeypatch, capsys, arguments, said
    ):
        if "--corpus" not in arguments:
            monkeypatch.setenv("FEDPRIV_DATA", str(tiny_corpus.directory))
        out = tmp_path / "run"
        assert main(monkeypatch, "run", *arguments, "--out", out, "--json") == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith("error: ") and shown.err.count("\n") == 1
        assert said in shown.err and "Traceback" not in shown.err
        assert not out.exists()

    def test_threads_for_a_model_of_torch(self, tmp_path, monkeypatch, capsys):
        (tmp_path / "dense_model.py").write_text(DENSE, "utf-8")
        monkeypatch.chdir(tmp_path)
        out = tmp_path / "run"
        arguments = ["dense_model:experiment", "--engine", "threads", "--workers", "2"]
        assert main(monkeypatch, "run", *arguments, "--out", out, "--json") == 2
        assert "'threads': " in capsys.readouterr().err
        assert not out.exists()

    def test_gpus_for_tags(self, tiny_corpus, tmp_path, monkeypatch, capsys):
        machine = "fedpriv.backends.ray.cluster.this_machine"
        monkeypatch.setattr(machine, lambda request: {"CPU": 2.0, "GPU": 1.0})
        out = tmp_path / "run"
        arguments = ["dp-fedavg-tags", "--corpus", tiny_corpus.directory, *SMALL]
        arguments += ["--engine", "ray", "--gpus-per-worker", "1"]
        assert main(monkeypatch, "run", *arguments, "--out", out, "--json") == 2
        shown = capsys.readouterr().err
        assert "does not train on 'cuda:0'" in shown and "starting Ray" not in shown
        assert not out.exists()

    @pytest.mark.parametrize(
        "arguments",
        [["run", "--rounds", "many"], ["run", "--no-such"], ["walk"], ["run", "a", "b"]],
    )
    def test_what_is_no_command_at_all(self, monkeypatch, capsys, arguments):
        assert main(monkeypatch, *arguments) == 2
        assert "Traceback" not in capsys.readouterr().err

    def test_a_folder_that_holds_a_run(self, tiny_corpus, tmp_path, monkeypatch, capsys):
        arguments = [
            "run",
            "dp-fedavg-tags",
            "--corpus",
            tiny_corpus.directory,
            *SMALL,
            "--out",
            tmp_path / "run",
            "--json",
        ]
        run(*arguments)
        assert main(monkeypatch, *arguments) == 2
        assert "already holds a run" in capsys.readouterr().err
