"""`fedpriv report`, `compare`, `export` and `predict`, as typed."""

import json
import re
from typing import ClassVar

import numpy as np
import pytest
import typer

from fedpriv.cli import results
from tests.cli.typed import main
from tests.harness.command_line import CliRunner
from tests.harness.refusals import refuses


@pytest.fixture
def run_command():
    app = typer.Typer()
    results.register(app)

    def run(*arguments: object) -> str:
        result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


@pytest.mark.slow
def test_report_writes_the_page_and_opens_it_only_when_asked(make_run, run_command, monkeypatch):
    opened: list[str] = []
    monkeypatch.setattr(results.webbrowser, "open", opened.append)
    folder = make_run("a")
    page = folder / "report.html"
    assert run_command("report", folder).strip() == str(page)
    assert page.is_file() and not opened
    run_command("report", folder, "--open", "--replicate", make_run("b", seed=1))
    assert opened == [page.resolve().as_uri()]
    assert "mean over 2 seeds" in page.read_text()


@pytest.mark.slow
def test_compare_prints_a_table_json_and_a_page(make_run, run_command, tmp_path) -> None:
    runs = [make_run(f"a{seed}", seed=seed) for seed in range(4)]
    runs += [make_run("c", name="[red]x", synthetic=True)]
    out = tmp_path / "compare.html"
    table = run_command("compare", *runs, "--out", out)
    assert out.is_file() and "[red]x" in table and "SYNTHETIC" in table
    rows = json.loads(run_command("compare", *runs, "--json"))
    assert [row["name"] for row in rows] == ["adadps-tags", "[red]x"]
    assert rows[0]["seeds"] == [0, 1, 2, 3] and len(rows[0]["accuracy_interval"]) == 2
    assert "±" in table


@pytest.mark.slow
def test_compare_takes_whatever_lies_in_the_folder(make_run, tmp_path, monkeypatch, capsys) -> None:
    def compare(*arguments: object):
        status = main(monkeypatch, "compare", *arguments)
        out, err = capsys.readouterr()
        return status, out, err

    make_run("runs/a", public_only=0.18)
    make_run("runs/b", backend="ray")
    make_run("runs/c", rounds=3, planned=9, seed=1)
    (tmp_path / "runs" / "notes.txt").write_text("")
    outs = [tmp_path / f"all{suffix}" for suffix in (".html", ".csv", ".tex", ".svg")]
    runs = sorted((tmp_path / "runs").iterdir())
    status, shown, warned = compare(*runs, *(w for out in outs for w in ("--out", out)))
    assert status == 0 and "notes.txt" in warned and "notes.txt" not in shown
    assert "backend ray" in shown and "unfinished:" in shown and "3 of 9" in shown
    assert "points" in shown and re.search(r"public-only +18\.0", shown)
    assert all(out.is_file() for out in outs)
    rows = json.loads(compare(*runs, "--json")[1])
    assert [row["accuracy_public_only"] for row in rows] == [0.18, None, None]
    assert [row["finished"] for row in rows] == [True, True, False]
    status, shown, warned = compare(tmp_path / "runs" / "notes.txt")
    assert (status, shown) == (2, "") and "notes.txt" in warned
    status, _, warned = compare(*runs, "--out", tmp_path / "all.pdf")
    assert status == 2 and "all.pdf" in warned


def test_export_then_predict(make_run, run_command, tmp_path) -> None:
    folder, out = make_run(checkpoints=True), tmp_path / "model"
    exported = json.loads(run_command("export", folder, "--to", out, "--json"))
    assert exported == {"path": str(out), "round": 20, "run_dir": str(folder)}
    text = "My VISA, http://example.org"
    for model in (out, folder):
        found = json.loads(run_command("predict", model, "--text", text, "--top", 2, "--json"))
        # visa and <URL> are known; my and the comma are not, and do not count.
        assert (found["num_tokens"], found["num_known_tokens"]) == (4, 2)
        logits = np.array([6 / 2, 0, 0.5]) / np.array([2, 1, 2])
        shares = np.exp(logits) / np.exp(logits).sum()
        assert [tag["tag"] for tag in found["tags"]] == ["legal", "hiring"]
        assert found["tags"][0]["probability"] == pytest.approx(shares[0], rel=1e-6)
    assert "legal" in run_command("predict", out, "--text", text)


class _View:
    words, tags = ("startup", "equity", "visa", "<URL>", "founder"), ("legal", "funding", "hiring")

    def __init__(self, roster_sha256: str) -> None:
        self.roster_sha256 = roster_sha256


def test_a_run_without_vocabulary_takes_it_from_its_corpus(
    make_run, run_command, tmp_path, monkeypatch
) -> None:
    folder = make_run(checkpoints=True, corpus={"path": str(tmp_path)})
    (folder / "vocabulary.json").unlink()
    asked = []

    class _Corpus:
        sha = "ab" * 32

        @classmethod
        def open(cls, path):
            asked.append(path)
            return cls()

        def view(self, roster, users, split):
            asked.append((roster, users))
            return _View(self.sha)

    monkeypatch.setattr(results, "Corpus", _Corpus)
    run_command("export", folder, "--to", tmp_path / "out")
    assert asked == [tmp_path, ("onstartups-all", None)]
    assert json.loads(run_command("predict", folder, "--text", "visa", "--json"))["tags"]
    monkeypatch.setattr(_Corpus, "sha", "cd" * 32)
    with refuses(ValueError, tmp_path):
        run_command("export", folder, "--to", tmp_path / "other")
    with refuses(ValueError, tmp_path / "gone"):
        run_command("export", folder, "--to", tmp_path / "x", "--corpus", tmp_path / "gone")


def test_a_tag_model_without_vocabulary_or_corpus_says_where_to_take_it_from(
    make_run, run_command, tmp_path
):
    folder = make_run()
    with pytest.raises(ValueError):
        run_command("export", folder, "--to", tmp_path / "out")


class TestExamples:
    """Centralised runs: compared and exported as what they are."""

    CENTRAL: ClassVar = {
        "unit": "example",
        "corpus": {"roster": "training set", "num_tags": None, "num_words": None, "path": None},
    }

    @pytest.mark.parametrize(
        ("made", "unit", "turns", "diagnosed", "released"),
        [
            (CENTRAL, "example", "steps", "training examples", "test examples"),
            ({}, "user", "rounds", "rostered users", "public users"),
        ],
    )
    def test_compare_speaks_of(self, make_run, run_command, made, unit, turns, diagnosed, released):
        shown = run_command("compare", make_run("a", **made))
        assert f"per {unit}, by PLD" in shown and turns in shown
        assert not re.search({"example": r"\b(users?|rounds)\b", "user": r"\bsteps\b"}[unit], shown)
        assert f"* {diagnosed}: a diagnostic, not covered by ε" in shown
        assert f"† {released}: released" in shown

    def test_both_units_are_named(self, make_run, run_command):
        shown = run_command("compare", make_run("a", **self.CENTRAL), make_run("b", seed=1))
        assert "per example, by PLD" in shown and "per user, by PLD" in shown

    def test_an_export_reads_no_text(self, make_run, run_command, tmp_path):
        folder, out = make_run(checkpoints=True, **self.CENTRAL), tmp_path / "model"
        (folder / "vocabulary.json").unlink()
        run_command("export", folder, "--to", out)
        assert sorted(path.name for path in out.iterdir()) == ["README.md", "model.safetensors"]
        for model in (folder, out):
            with refuses(ValueError, model):
                run_command("predict", model, "--text", "visa")
