"""The wheel holds all that a user needs: built, installed in a new environment, used there."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

import fedpriv
from fedpriv.datasets.importers.synthetic import synthesize
from tests.harness.tag_runs import SMALL

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The built wheel; a copy of the sources is built so that the checkout stays clean."""
    copy = tmp_path_factory.mktemp("sources")
    for name in ("fedpriv", "pyproject.toml", "README.md", "LICENSE"):
        subprocess.run(["cp", "-r", str(ROOT / name), str(copy)], check=True)
    out = copy / "dist"
    build = ["-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(copy)]
    subprocess.run([sys.executable, *build], check=True, capture_output=True)
    [built] = out.glob("*.whl")
    return built


@pytest.mark.slow
def test_one_version_stands_in_all_places(wheel):
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert cited is not None
    assert {cited[1], project["version"]} == {fedpriv.__version__}
    assert wheel.name.startswith(f"fedpriv-{fedpriv.__version__}-")


@pytest.mark.slow
def test_it_holds_the_library_only(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"fedpriv"}
    assert not any("test" in Path(name).name for name in names)
    templates = {str(path.relative_to(ROOT)) for path in (ROOT / "fedpriv").rglob("*.md")}
    assert templates and templates <= set(names)


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A call of `fedpriv` in a new environment that has the wheel and sees our dependencies alone.

    A path file names the folder of the dependencies: those in it are not read, so that a checkout
    that is installed there is not seen.
    """
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    [site] = (folder / "venv" / "lib").glob("python*/site-packages")
    environment = {**os.environ, "FEDPRIV_CACHE": str(folder / "cache")}
    for name in ("FEDPRIV_DATA", "PYTHONPATH"):  # with a checkout on the path pip has it already
        environment.pop(name, None)
    install = ["-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run(
        [sys.executable, *install, wheel], check=True, capture_output=True, env=environment
    )
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    work = folder / "work"
    work.mkdir()

    def call(*arguments: str | Path, code: int = 0) -> str:
        done = subprocess.run(
            [python.with_name("fedpriv"), *arguments],
            cwd=work, env=environment, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    shown = subprocess.run(
        [python, "-c", "import fedpriv; print(fedpriv.__file__)"],
        cwd=work, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert Path(shown.stdout.strip()).is_relative_to(site)
    synthesize(work / "tiny", **SMALL)
    return call


_LITTLE = (
    *("--corpus", "tiny", "--rounds", "2", "--cohort", "6", "--noise-multiplier", "1"),
    *("--delta", "0.001", "-s", "eval-every=2"),
)


@pytest.mark.slow
class TestInstalled:
    def test_experiments_are_listed(self, installed):
        assert "adadps-tags" in {entry["name"] for entry in json.loads(installed("list", "--json"))}

    def test_a_run(self, installed):
        given = ("--corpus", "tiny", "--rounds", "1", "--json")
        found = json.loads(installed("run", "adadps-tags", *given))
        assert found["synthetic"] is True and found["rounds"] == 1

    def test_tuning(self, installed):
        grid = ("--grid", "l2-clip-norm=0.1,0.5", "--mean", "2", "--out", "study")
        assert json.loads(installed("tune", "dp-fedavg-tags", *_LITTLE, *grid, "--json"))

    def test_an_audit(self, installed):
        found = installed("audit", "dp-fedavg-tags", *_LITTLE, "--trials", "1000", "--json")
        assert json.loads(found)
