"""`fedpriv run` and its mistakes: one clear line, and nothing left behind."""

import pytest

from tests.cli.typed import SMALL, main, run

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
    "set twice": (
        ["dp-fedavg-tags", "--set", "cohort=5", "-s", "rounds=2", "-s", "cohort = 6"],
        "cohort is given twice, as 5 and as 6",
    ),
    "flag and set": (
        ["dp-fedavg-tags", "--cohort", "5", "--set", "cohort=6"],
        "cohort is given twice, as 5.0 and as 6",
    ),
    "pays for nothing": (
        [
            *("dp-fedavg-tags", "--noise-multiplier", "1", "--delta", "0.001"),
            *("--cohort", "6", "--target-epsilon", "0.01"),
        ],
        "target-epsilon 0.01 pays for no round",
    ),
    "set type": (["dp-fedavg-tags", "--set", "rounds=many"], "many"),
    "set no axis": (["dp-fedavg-tags", "--set", "local-batch-size=0"], "local-batch-size 0 must"),
    "backend": (["dp-fedavg-tags", "--backend", "spark"], "spark"),
    "serial workers": (["dp-fedavg-tags", "--workers", "2"], "--workers 2 is for several workers"),
    "no threads": (["dp-fedavg-tags", "--backend", "threads", "--workers", "0"], "--workers 0"),
    "gpu threads": (
        ["dp-fedavg-tags", "--backend", "threads", "--gpus-per-worker", "1"],
        "use --backend ray",
    ),
    "keep": (["dp-fedavg-tags", "--keep-checkpoints", "0"], "'0'"),
    "secure seed": (["dp-fedavg-tags", "--secure", "--seed", "1"], "--secure takes no seed"),
    "corpus": (["dp-fedavg-tags", "--corpus", "/no/such/place"], "/no/such/place"),
    "markup": (["[bold]tags"], "[bold]tags"),
}


DENSE = """
import numpy as np
from torch import nn
from fedpriv.experiments import FederatedExperiment, GaussianNoise, PoissonCohorts
from fedpriv.training.local.module import ArrayExamples
from fedpriv.tasks.module_task import ModuleTask


def experiment():
    users = {name: ArrayExamples(x=np.ones((2, 3), "f4"), y=np.array([0, 1])) for name in "abcd"}
    return FederatedExperiment(
        name="dense", description="",
        noise=GaussianNoise(multiplier=1.0), sampling=PoissonCohorts(cohort=2.0),
        delta=0.01, rounds=1,
        task=lambda experiment, corpus: ModuleTask(
            name="dense", module=lambda: nn.Linear(3, 2), loss=nn.functional.cross_entropy,
            users=users, synthetic=True,
        ),
    )
"""


class TestErrors:
    @pytest.mark.slow
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

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["run", "dp-fedavg-tags", *SMALL, "--out", ""], "--out is given an empty value"),
            (["run", "dp-fedavg-tags", *SMALL, "--out="], "--out is given an empty value"),
            (["run", "dp-fedavg-tags", *SMALL, "--out", "  "], "--out is given an empty value"),
            (["run", "dp-fedavg-tags", *SMALL, "--out=\t"], "--out is given an empty value"),
            (["run", "--resume", ""], "--resume is given an empty value"),
            (["data", "synth", "--out", ""], "--out is given an empty value"),
        ],
    )
    def test_an_empty_name_is_not_the_current_folder(
        self, tiny_corpus, tmp_path, monkeypatch, capsys, arguments, said
    ):
        monkeypatch.setenv("FEDPRIV_DATA", str(tiny_corpus.directory))
        monkeypatch.chdir(tmp_path)
        assert main(monkeypatch, *arguments) == 2
        assert said in capsys.readouterr().err
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("given", [["--title", ""], ["--title="], ["--title", " "]])
    def test_a_text_may_be_empty(self, tmp_path, monkeypatch, capsys, given):
        """The error is of the model that is not there, and not of the text."""
        gone = tmp_path / "gone"
        assert main(monkeypatch, "predict", gone, "--text", "", *given) == 2
        assert str(gone) in capsys.readouterr().err

    def test_threads_for_a_model_of_torch(self, tmp_path, monkeypatch, capsys):
        (tmp_path / "dense_model.py").write_text(DENSE, "utf-8")
        monkeypatch.chdir(tmp_path)
        out = tmp_path / "run"
        arguments = ["dense_model:experiment", "--backend", "threads", "--workers", "2"]
        assert main(monkeypatch, "run", *arguments, "--out", out, "--json") == 2
        assert "threads: " in capsys.readouterr().err
        assert not out.exists()

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["--device", "cuda:0"], "sees no GPU here"),
            (["--device", "tpu"], "device 'tpu' is not one to train on; use 'cpu' or 'cuda:0'"),
            (["--backend", "threads", "--device", "cpu"], "is not for backend 'threads'"),
            (["--backend", "ray", "--device", "cuda:0"], "Ray hands out GPUs by --gpus-per-worker"),
        ],
    )
    def test_devices_that_cannot_be_had(
        self, tiny_corpus, tmp_path, monkeypatch, capsys, arguments, says
    ):
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        out = tmp_path / "run"
        asked = ["dp-fedavg-tags", "--corpus", tiny_corpus.directory, *SMALL, *arguments]
        assert main(monkeypatch, "run", *asked, "--out", out, "--json") == 2
        assert says in " ".join(capsys.readouterr().err.split())
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
