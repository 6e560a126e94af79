"""`fedpriv report`, `compare`, `export` and `predict`, as typed."""

import re
from typing import ClassVar

import numpy as np
import pytest

from fedpriv.cli import results
from tests.cli.typed import figures, run
from tests.harness.command_line import fedpriv, refusal


@pytest.mark.slow
def test_report_writes_the_page_and_opens_it_only_when_asked(make_run, monkeypatch):
    opened: list[str] = []
    monkeypatch.setattr(results.webbrowser, "open", opened.append)
    folder = make_run("a")
    page = folder / "report.html"
    assert run("report", folder).stdout.strip() == str(page)
    assert page.is_file() and not opened
    run("report", folder, "--open", "--replicate", make_run("b", seed=1))
    assert opened == [page.resolve().as_uri()]
    assert "mean over 2 seeds" in page.read_text()


@pytest.mark.slow
def test_compare_prints_a_table_json_and_a_page(make_run, tmp_path) -> None:
    runs = [make_run(f"a{seed}", seed=seed) for seed in range(4)]
    runs += [make_run("c", name="[red]x", synthetic=True)]
    out = tmp_path / "compare.html"
    table = run("compare", *runs, "--out", out).stdout
    assert out.is_file() and "[red]x" in table and "SYNTHETIC" in table
    rows = figures("compare", *runs)
    assert [row["name"] for row in rows] == ["adadps-tags", "[red]x"]
    assert rows[0]["seeds"] == [0, 1, 2, 3] and len(rows[0]["accuracy_interval"]) == 2
    assert "±" in table


@pytest.mark.slow
def test_compare_takes_whatever_lies_in_the_folder(make_run, tmp_path) -> None:
    make_run("runs/a", public_only=0.18)
    make_run("runs/b", backend="ray")
    make_run("runs/c", rounds=3, planned=9, seed=1)
    (tmp_path / "runs" / "notes.txt").write_text("")
    outs = [tmp_path / f"all{suffix}" for suffix in (".html", ".csv", ".tex", ".svg")]
    runs = sorted((tmp_path / "runs").iterdir())
    _, shown, warned = run("compare", *runs, *(w for out in outs for w in ("--out", out)))
    assert "notes.txt" in warned and "notes.txt" not in shown
    assert "backend ray" in shown and "unfinished:" in shown and "3 of 9" in shown
    assert "points" in shown and re.search(r"public-only +18\.0", shown)
    assert all(out.is_file() for out in outs)
    rows = figures("compare", *runs)
    assert [row["accuracy_public_only"] for row in rows] == [0.18, None, None]
    assert [row["finished"] for row in rows] == [True, True, False]
    for given, name in (
        (runs[-1:], "notes.txt"),
        ((*runs, "--out", tmp_path / "all.pdf"), "all.pdf"),
    ):
        done = fedpriv("compare", *given)
        assert (done.exit_code, done.stdout) == (2, "") and name in done.stderr


def test_export_then_predict(make_run, tmp_path) -> None:
    folder, out = make_run(checkpoints=True), tmp_path / "model"
    exported = figures("export", folder, "--to", out)
    assert exported == {"path": str(out), "round": 20, "run_dir": str(folder)}
    text = "My VISA, http://example.org"
    for model in (out, folder):
        found = figures("predict", model, "--text", text, "--top", 2)
        # visa and <URL> are known; my and the comma are not, and do not count.
        assert (found["num_tokens"], found["num_known_tokens"]) == (4, 2)
        logits = np.array([6 / 2, 0, 0.5]) / np.array([2, 1, 2])
        shares = np.exp(logits) / np.exp(logits).sum()
        assert [tag["tag"] for tag in found["tags"]] == ["legal", "hiring"]
        assert found["tags"][0]["probability"] == pytest.approx(shares[0], rel=1e-6)
    assert "legal" in run("predict", out, "--text", text).stdout


class _View:
    words, tags = ("startup", "equity", "visa", "<URL>", "founder"), ("legal", "funding", "hiring")

    def __init__(self, roster_sha256: str) -> None:
        self.roster_sha256 = roster_sha256


def test_a_run_without_vocabulary_takes_it_from_its_corpus(make_run, tmp_path, monkeypatch) -> None:
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
    run("export", folder, "--to", tmp_path / "out")
    assert asked == [tmp_path, ("onstartups-all", None)]
    assert figures("predict", folder, "--text", "visa")["tags"]
    monkeypatch.setattr(_Corpus, "sha", "cd" * 32)
    out = ("export", folder, "--to", tmp_path / "other")
    assert str(tmp_path) in refusal(*out)
    assert str(tmp_path / "gone") in refusal(*out, "--corpus", tmp_path / "gone")


def test_a_tag_model_without_vocabulary_or_corpus_says_where_to_take_it_from(make_run, tmp_path):
    refusal("export", make_run(), "--to", tmp_path / "out")


class TestExamples:
    """Centralised runs: compared and exported as what they are."""

    CENTRAL: ClassVar = {
        "unit": "example",
        "corpus": {"roster": "training set", "num_tags": None, "num_words": None, "path": None},
    }

    def test_both_units_are_named(self, make_run):
        shown = run("compare", make_run("a", **self.CENTRAL), make_run("b", seed=1)).stdout
        assert "per example, by PLD" in shown and "per user, by PLD" in shown

    def test_an_export_reads_no_text(self, make_run, tmp_path):
        folder, out = make_run(checkpoints=True, **self.CENTRAL), tmp_path / "model"
        (folder / "vocabulary.json").unlink()
        run("export", folder, "--to", out)
        assert sorted(path.name for path in out.iterdir()) == ["README.md", "model.safetensors"]
        for model in (folder, out):
            assert str(model) in refusal("predict", model, "--text", "visa")
