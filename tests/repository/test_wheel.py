"""The wheel holds all that a user needs: built, installed in an empty folder, run for a round."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The built wheel; a copy of the sources is built so that the checkout stays clean."""
    copy = tmp_path_factory.mktemp("sources")
    for name in ("fedpriv", "simulations", "pyproject.toml", "README.md", "LICENSE"):
        subprocess.run(["cp", "-r", str(ROOT / name), str(copy)], check=True)
    out = copy / "dist"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "--outdir",
            str(out),
            str(copy),
        ],
        check=True,
        capture_output=True,
    )
    [built] = out.glob("*.whl")
    return built


def test_it_holds_the_library_and_the_experiments_only(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"fedpriv", "simulations"}
    assert not any("test" in Path(name).name for name in names)


def test_what_is_in_it_finds_its_experiments(wheel, tmp_path):
    """Nothing is compiled here; the run below does."""
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    zipfile.ZipFile(wheel).extractall(site)
    code = (
        "import fedpriv, pathlib, simulations, sys\n"
        "from fedpriv.cli import main\n"
        "for module in (fedpriv, simulations):\n"
        f"    assert pathlib.Path(module.__file__).is_relative_to({str(site)!r})\n"
        "sys.argv = ['fedpriv', 'list', '--json']\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=empty,
        env={**os.environ, "PYTHONPATH": str(site), "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "adadps-tags" in {entry["name"] for entry in json.loads(done.stdout)}


@pytest.mark.slow
def test_an_installed_package_runs_a_round(wheel, tmp_path):
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            str(site),
            str(wheel),
        ],
        check=True,
        capture_output=True,
    )
    code = (
        "import fedpriv, pathlib, sys\n"
        f"assert pathlib.Path(fedpriv.__file__).is_relative_to({str(site)!r})\n"
        "from fedpriv.datasets.stackexchange.synthetic import Shape, synthesize\n"
        "from fedpriv.cli import main\n"
        "shape = Shape(num_users=24, num_sentences=500, public_users=6, num_words=200,"
        " num_tags=12, num_topics=4)\n"
        "synthesize(pathlib.Path('tiny'), shape=shape, max_words=150, max_tags=10)\n"
        "sys.argv = ['fedpriv', 'run', 'adadps-tags', '--corpus', 'tiny', '--rounds', '1',"
        " '--json']\n"
        "main()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(site), "FEDPRIV_CACHE": str(tmp_path / "cache")}
    environment.pop("FEDPRIV_DATA", None)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=empty, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["synthetic"] is True and figures["rounds"] == 1
