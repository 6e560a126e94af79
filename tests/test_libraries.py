"""Packages of extras: without one, what needs it says in a line how it is installed."""

import sys
from pathlib import Path

import pytest

import fedpriv as fp
from fedpriv.datasets.raw_files import unpack_one
from fedpriv.libraries import need
from fedpriv.runs.backends import Cluster, Request
from tests.harness.refusals import refuses


def test_what_is_installed_is_needed_in_silence():
    need("numpy", "pandas", "nothing")


def seven_zip(folder: Path) -> None:
    archive = folder / "dump.7z"
    archive.write_bytes(b"7z")
    unpack_one(archive, folder, "Posts.xml")


@pytest.mark.parametrize(
    ("module", "extra", "call"),
    [
        ("ray", "ray", lambda folder: Cluster(Request(workers=1))),
        ("pandas", "pandas", lambda folder: fp.compare(folder)),
        ("py7zr", "data", seven_zip),
    ],
)
def test_a_missing_package_is_said_with_its_command(module, extra, call, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with refuses(ValueError, module, f"fedpriv[{extra}]") as error:
        call(tmp_path)
    assert "\n" not in str(error.value)
