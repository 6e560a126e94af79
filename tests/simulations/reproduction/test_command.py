"""`python -m simulations`: from a name to a page."""

import io
import sys
from dataclasses import replace
from types import ModuleType

import pytest
from rich.console import Console

import simulations
from simulations.reproduction import command, runs
from simulations.reproduction.items import Cell, Row, Study
from tests.harness.command_line import CliRunner
from tests.simulations.reproduction.tiny_tables import RATES, figure, row, table


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
        return CliRunner().invoke(command.app, [str(a) for a in arguments])

    def test_lists(self):
        said = self.run()
        assert said.exit_code == 0
        assert "tiny" in said.output and "Tiny, Table 1" in said.output and "0.5" in said.output

    @pytest.mark.parametrize("option", ["--seeds", "--processes"])
    def test_numbers_below_one(self, option):
        said = self.run("tiny", option, 0)
        assert isinstance(said.exception, ValueError) and f"{option} 0" in str(said.exception)

    @pytest.mark.parametrize("option", ["--out", "--plot"])
    def test_an_unwritable_place_is_named_before_the_work(self, option, tmp_path, monkeypatch):
        def never(*given, **named):
            raise AssertionError("this should not have begun")

        monkeypatch.setattr(command, "_reproduced", never)
        (tmp_path / "file").write_text("precious")
        for place in ("file/x.png", "folder.png"):
            (tmp_path / "folder.png").mkdir(exist_ok=True)
            said = self.run("tiny", option, tmp_path / place).exception
            assert isinstance(said, ValueError) and place in str(said)
        assert (tmp_path / "file").read_text() == "precious"

    @pytest.mark.slow
    def test_from_nothing_to_a_table(self, tmp_path):
        out = tmp_path / "deep" / "t.md"
        said = self.run("tiny", "--seeds", 2, "--out", out)
        assert said.exit_code == 0, said.output
        assert "(SYNTHETIC data)" in said.output and "| DP-SGD | 0.63 |" in said.output
        assert out.read_text("utf-8").strip() in said.output

    @pytest.mark.slow
    def test_a_table_on_a_device(self, monkeypatch):
        """Its runs are the processor's to rounding, and its page names the device."""
        usual_path, pages = runs.serial, []
        for device in (("--device", "cpu"), ()):
            monkeypatch.setattr(runs, "serial", None if device else usual_path)
            said = self.run("tiny", "--seeds", 1, *device)
            assert said.exit_code == 0, said.output
            pages.append(said.output)
        assert "Trained on cpu." in pages[0] and "Trained on" not in pages[1]
        assert pages[0].replace(" Trained on cpu.", "") == pages[1]

    def test_devices_that_are_refused(self):
        assert "'tpu'" in str(self.run("tiny", "--device", "tpu").exception)
        said = self.run("tiny", "--device", "cuda:0", "--processes", 2).exception
        assert isinstance(said, ValueError)
        assert "--processes 2" in str(said) and "--device cuda:0" in str(said)

    @pytest.mark.slow
    def test_a_beginning_up_to_a_hyphen_means_all_of_them(self, tmp_path):
        out = tmp_path / "o.md"
        said = self.run("other-table1", "--seeds", 1, "--out", out)
        assert said.exit_code == 0, said.output
        text = out.read_text("utf-8")
        assert text.index("# Other, real\n") < text.index("# Other, Table 1 (SYNTHETIC data)\n")
        assert "Table 11" not in text
        assert "# Other, real\n" in said.output and "# Other, Table 1 (" in said.output

    @pytest.mark.slow
    def test_data_that_are_not_to_be_had_do_not_keep_the_others(self, monkeypatch):
        def fail(split, reduced):
            raise ValueError("download it first")

        gone = table(
            Row(label="a", cells={"ours": Cell(make=fail)}), name="other-table1-gone", title="Gone"
        )
        tables = sys.modules["synthetic_tables"]
        monkeypatch.setattr(tables, "REPRODUCTIONS", (gone, *tables.REPRODUCTIONS))
        said = self.run("other-table1", "--seeds", 1)
        assert "# Other, real" in said.output and "# Other, Table 1 (SYNTHETIC" in said.output
        assert "other-table1-gone: download it first" in self.errors.getvalue()
        assert said.exit_code != 0 and "other-table1-gone" in str(said.exception)

    @pytest.mark.slow
    def test_a_study_is_run(self, tmp_path, monkeypatch):
        calls, tables = [], sys.modules["synthetic_tables"]

        def run(*, seeds=5, kind="all"):
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
        assert isinstance(self.run("drawn", "--reduced").exception, ValueError)
        assert "By a function" in self.run().output
        for option in ("--out", "--plot", "--corpus", "--device"):
            given = tmp_path / "page.png"
            said = self.run("drawn", option, given).exception
            assert isinstance(said, ValueError) and f"{option} {given}" in str(said)
        assert len(calls) == 1

    def test_a_whole_name_is_no_beginning_of_a_longer_one(self):
        names = ("bolt-on-mnist", "bolt-on-mnist-ova", "bolt-on-time", "bolt-on11")
        found = dict(zip(names, (table(row("a"), name=name) for name in names), strict=True))
        assert [item.name for item in command._named(found, "bolt-on-mnist")] == [names[0]]
        assert [item.name for item in command._named(found, "bolt-on")] == list(names[:3])

    def test_the_nearest_known_name(self):
        said = self.run("other-tabel1").exception
        assert isinstance(said, ValueError) and "'other-table1'" in str(said)

    def test_synthetic_data_are_said_before_anything_runs(self, monkeypatch):
        def never(run, device):
            raise RuntimeError("too early")

        monkeypatch.setattr(runs, "perform", never)
        for name, count in (("tiny", 1), ("other-table1-real", 0)):
            said = self.run(name)
            assert said.exit_code != 0 and "SYNTHETIC" not in said.stdout
            assert self.errors.getvalue().count("data: SYNTHETIC sixty rows") == count

    @pytest.mark.slow
    def test_a_figure_is_drawn_beside_its_page(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        said = self.run("curves", "--seeds", 1, "--out", "c.md")
        assert said.exit_code == 0, said.output
        assert (tmp_path / "results" / "curves.png").read_bytes().startswith(b"\x89PNG")
        text = (tmp_path / "c.md").read_text("utf-8")
        assert "SYNTHETIC data" in text and "](results/curves.png)" in text
