"""`fedpriv reproduce`: from nothing to a page, and again for nothing."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from types import ModuleType

import pytest
from rich.console import Console
from tiny_tables import RATES, figure, row, table

import simulations
from fedpriv import cli
from simulations.reproduction import command, runs
from simulations.reproduction.items import Cell, Row, Study
from simulations.reproduction.runs import read
from tests.harness.command_line import CliRunner


class TestCommand:
    @pytest.fixture(autouse=True)
    def known(self, monkeypatch):
        """What the commands find: one table of ours."""
        self.errors = io.StringIO()
        monkeypatch.setattr(command, "errors", Console(file=self.errors, width=200))
        tables = ModuleType("synthetic_tables")
        monkeypatch.setattr(simulations, "REPRODUCTIONS", ("synthetic_tables",))
        tables.REPRODUCTIONS = (
            table(row("DP-SGD", 0.63, RATES)),
            table(row("a"), name="other-table1-toy", title="Other, Table 1"),
            table(
                row("a", synthetic=False, name="real"),
                name="other-table1-real",
                title="Other, real",
            ),
            table(row("a"), name="other-table11", title="Other, Table 11"),
            figure(row("a"), name="curves"),
        )
        monkeypatch.setitem(__import__("sys").modules, "synthetic_tables", tables)

    def run(self, *arguments):
        self.errors.seek(0)
        self.errors.truncate()
        return CliRunner().invoke(cli.app, ["reproduce", *(str(a) for a in arguments)])

    def test_lists(self):
        said = self.run()
        assert said.exit_code == 0
        assert "tiny" in said.output and "Tiny, Table 1" in said.output and "0.5" in said.output

    def test_without_a_checkout(self, monkeypatch, tmp_path):
        from fedpriv.cli import reproduce

        monkeypatch.setattr(reproduce, "STUDIES", "fedpriv.no-such-group")
        said = self.run()
        assert said.exit_code == 1 and isinstance(said.exception, ValueError)
        assert "studies are run from a checkout of fedpriv" in str(said.exception)

    def test_an_unknown_name(self):
        said = self.run("nothing")
        assert "'nothing' is not known; `fedpriv reproduce` lists them" in str(said.exception)

    @pytest.mark.parametrize("option", ["--seeds", "--processes"])
    def test_numbers_below_one(self, option, tmp_path):
        said = self.run("tiny", option, 0, "--results", tmp_path / "r")
        assert isinstance(said.exception, ValueError) and "at least 1" in str(said.exception)
        assert not (tmp_path / "r").exists()

    @pytest.mark.slow
    def test_from_nothing_to_a_table_and_again_for_nothing(self, tmp_path, monkeypatch):
        results, out = tmp_path / "r.jsonl", tmp_path / "deep" / "t.md"
        given = ("tiny", "--seeds", 2, "--results", results, "--out", out)
        said = self.run(*given)
        assert said.exit_code == 0, said.output
        assert "(SYNTHETIC data)" in said.output and "| DP-SGD | 0.63 |" in said.output
        assert out.read_text("utf-8").strip() in said.output
        assert len(read(results)) == 5

        def never(run, device):
            raise RuntimeError("done already")

        monkeypatch.setattr(runs, "perform", never)
        assert self.run(*given).exit_code == 0

    @pytest.mark.slow
    def test_a_table_on_a_device(self, tmp_path, monkeypatch):
        """Its runs are the processor's to rounding, and are not done again without the device."""
        usual_path, pages = runs.serial, []
        for name, device in (("device", ("--device", "cpu")), ("usual", ())):
            monkeypatch.setattr(runs, "serial", None if device else usual_path)
            given = ("tiny", "--seeds", 1, "--results", tmp_path / name)
            said = self.run(*given, *device)
            assert said.exit_code == 0, said.output
            pages.append(said.output)
        assert "1 seeds. Trained on cpu." in pages[0] and "Trained on" not in pages[1]
        on_device, usual = (read(tmp_path / name) for name in ("device", "usual"))
        assert on_device.keys() == usual.keys()
        for identity, line in usual.items():
            assert on_device[identity]["device"] == "cpu" and "device" not in line
            assert on_device[identity]["accuracy"] == pytest.approx(line["accuracy"], rel=1e-6)

    def test_devices_that_are_refused(self, tmp_path):
        given = ("tiny", "--results", tmp_path / "r", "--device")
        assert "'tpu' is not one to train on" in str(self.run(*given, "tpu").exception)
        said = str(self.run(*given, "cuda:0", "--processes", 2).exception)
        assert "--processes 2 with --device cuda:0: one process trains on a GPU" in said
        assert not (tmp_path / "r").exists()

    @pytest.mark.slow
    def test_a_beginning_up_to_a_hyphen_means_all_of_them(self, tmp_path):
        out = tmp_path / "o.md"
        said = self.run("other-table1", "--seeds", 1, "--results", tmp_path / "r", "--out", out)
        assert said.exit_code == 0, said.output
        text = out.read_text("utf-8")
        assert text.index("# Other, real\n") < text.index("# Other, Table 1 (SYNTHETIC data)\n")
        assert "Table 11" not in text
        assert "# Other, real\n" in said.output and "# Other, Table 1 (" in said.output

    @pytest.mark.slow
    def test_data_that_are_not_to_be_had_do_not_keep_the_others(self, tmp_path, monkeypatch):
        def fail(split, reduced):
            raise ValueError("download it first")

        gone = table(
            Row(label="a", cells={"ours": Cell(make=fail)}), name="other-table1-gone", title="Gone"
        )
        tables = sys.modules["synthetic_tables"]
        monkeypatch.setattr(tables, "REPRODUCTIONS", (gone, *tables.REPRODUCTIONS))
        said = self.run("other-table1", "--seeds", 1, "--results", tmp_path / "r")
        assert "# Other, real" in said.output and "# Other, Table 1 (SYNTHETIC" in said.output
        assert "other-table1-gone: download it first" in self.errors.getvalue()
        assert said.exit_code != 0 and "not reproduced: other-table1-gone" in str(said.exception)

    @pytest.mark.slow
    def test_a_study_is_run(self, tmp_path, monkeypatch):
        calls, tables = [], sys.modules["synthetic_tables"]

        def run(*, seeds=5, results=None, kind="all"):
            calls.append((seeds, kind))

        one = Study(name="drawn", title="By a function", run=run, minutes=(1, 1))
        monkeypatch.setattr(tables, "REPRODUCTIONS", (one,))
        assert self.run("drawn", "-s", "kind=some").exit_code == 0 and calls == [(3, "some")]
        assert "drawn: about 1 minutes on 2 cores" in self.errors.getvalue()
        small = replace(one, reduced={"seeds": 2})
        monkeypatch.setattr(tables, "REPRODUCTIONS", (small,))
        for seeds in ((), ("--seeds", 4)):
            assert self.run("drawn", "--reduced", *seeds).exit_code == 0
        assert [calls.pop() for _ in range(2)] == [(4, "all"), (2, "all")]
        monkeypatch.setattr(tables, "REPRODUCTIONS", (one,))
        assert "no reduced size" in str(self.run("drawn", "--reduced").exception)
        assert "By a function" in self.run().output
        for option in ("--out", "--plot", "--corpus", "--device"):
            given = tmp_path / "page.png"
            said = str(self.run("drawn", option, given).exception)
            assert f"{option} {given} is not taken by drawn" in said
        assert len(calls) == 1

    def test_a_whole_name_is_no_beginning_of_a_longer_one(self):
        names = ("bolt-on-mnist", "bolt-on-mnist-ova", "bolt-on-time", "bolt-on11")
        found = dict(zip(names, (table(row("a"), name=name) for name in names), strict=True))
        assert [item.name for item in command._named(found, "bolt-on-mnist")] == [names[0]]
        assert [item.name for item in command._named(found, "bolt-on")] == list(names[:3])

    def test_the_nearest_known_name(self):
        assert "did you mean 'other-table1'?" in str(self.run("other-tabel1").exception)

    def test_synthetic_data_are_said_before_anything_runs(self, tmp_path, monkeypatch):
        def never(run, device):
            raise RuntimeError("too early")

        monkeypatch.setattr(runs, "perform", never)
        for name, count in (("tiny", 1), ("other-table1-real", 0)):
            said = self.run(name, "--results", tmp_path / "r")
            assert said.exit_code != 0 and "SYNTHETIC" not in said.stdout
            assert self.errors.getvalue().count("data: SYNTHETIC sixty rows") == count

    @pytest.mark.slow
    def test_a_figure_is_drawn_beside_the_results(self, tmp_path):
        results, out = tmp_path / "deep" / "r.jsonl", tmp_path / "c.md"
        said = self.run("curves", "--seeds", 1, "--results", results, "--out", out)
        assert said.exit_code == 0, said.output
        assert (tmp_path / "deep" / "curves.png").read_bytes().startswith(b"\x89PNG")
        text = out.read_text("utf-8")
        assert "# Tiny, Figure 1 (SYNTHETIC data)" in text
        assert "![Accuracy over the steps](deep/curves.png)" in text
        assert all(len(line["curve"]) == 3 for line in read(results).values())

    @pytest.mark.slow
    def test_plots_of_one_and_of_several(self, tmp_path):
        given = ("--seeds", 1, "--results", tmp_path / "r", "--plot", tmp_path / "p.png")
        assert self.run("tiny", *given).exit_code == 0
        assert self.run("other-table1", *given).exit_code == 0
        assert {path.name for path in tmp_path.glob("*.png")} == {
            "p.png",
            "p-other-table1-real.png",
            "p-other-table1-toy.png",
        }
