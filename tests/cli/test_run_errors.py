"""`fedpriv run` and its mistakes: one clear line, and nothing left behind."""

import pytest

from tests.cli.typed import SMALL, run
from tests.harness.command_line import fedpriv, refusal

BAD = {
    "no experiment": ([], "fedpriv list"),
    "unknown": (["adadps-tag"], "adadps-tags"),
    "module": (["no.such:thing"], "'no'"),
    "cohort": (["dp-fedavg-tags", "--cohort", "0"], "cohort"),
    "cohort above users": (["dp-fedavg-tags", "--cohort", "61"], "60 users"),
    "rounds": (["dp-fedavg-tags", "--rounds", "0"], "rounds 0"),
    "noise": (["dp-fedavg-tags", "--noise-multiplier", "0"], "noise-multiplier 0.0"),
    "negative": (["dp-fedavg-tags", "--target-epsilon", "-1"], "target-epsilon -1.0"),
    "nan": (["dp-fedavg-tags", "--delta", "nan"], "delta"),
    "delta": (["dp-fedavg-tags", "--delta", "1.5"], "delta"),
    "users": (["dp-fedavg-tags", "--users", "0"], "users"),
    "roster": (["dp-fedavg-tags", "--roster", "nobody"], "nobody"),
    "precondition": (["dp-fedavg-tags", "--precondition", "global"], "scale-then-privatise"),
    "bound": (["dp-fedavg-tags", "--bound", "none"], "bound"),
    "set": (["dp-fedavg-tags", "--set", "bound"], "NAME=VALUE"),
    "set unknown": (["dp-fedavg-tags", "--set", "bnd=clip"], "bound"),
    "set twice": (
        ["dp-fedavg-tags", "--set", "cohort=5", "-s", "rounds=2", "-s", "cohort = 6"],
        "cohort",
    ),
    "flag and set": (["dp-fedavg-tags", "--cohort", "5", "--set", "cohort=6"], "cohort"),
    "pays for nothing": (["dp-fedavg-tags", *SMALL, "--target-epsilon", "0.01"], "0.01"),
    "set type": (["dp-fedavg-tags", "--set", "rounds=many"], "many"),
    "set no axis": (["dp-fedavg-tags", "--set", "local-batch-size=0"], "local-batch-size 0"),
    "backend": (["dp-fedavg-tags", "--backend", "spark"], "spark"),
    "serial workers": (["dp-fedavg-tags", "--workers", "2"], "--backend ray"),
    "threads": (["dp-fedavg-tags", "--backend", "threads"], "'serial', 'ray'"),
    "no workers": (["dp-fedavg-tags", "--backend", "ray", "--workers", "0"], "--workers 0"),
    "serial gpus": (["dp-fedavg-tags", "--gpus-per-worker", "1"], "--backend ray"),
    "keep": (["dp-fedavg-tags", "--keep-checkpoints", "0"], "'0'"),
    "secure seed": (["dp-fedavg-tags", "--secure", "--seed", "1"], "--secure"),
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
            (["--backend", "ray", "--device", "cuda:0"], "--gpus-per-worker"),
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
        "arguments",
        [["run", "--rounds", "many"], ["run", "--no-such"], ["walk"], ["run", "a", "b"]],
    )
    def test_what_is_no_command_at_all(self, arguments):
        done = fedpriv(*arguments)
        assert done.exit_code == 2 and "Traceback" not in done.stderr

    def test_a_folder_that_holds_a_run(self, tiny_corpus, tmp_path):
        out = tmp_path / "run"
        given = ("--corpus", tiny_corpus.directory, *SMALL, "--out", out, "--json")
        run("run", "dp-fedavg-tags", *given)
        assert f"--resume {out}" in refusal("run", "dp-fedavg-tags", *given)
