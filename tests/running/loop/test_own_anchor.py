"""`fedpriv.averaging` with an anchor: copies and backups of its folder are refused too."""

import shutil

import pytest

import fedpriv as fp
from fedpriv.privacy.statement.verify import verify_run
from tests.harness.refusals import refuses
from tests.harness.tag_runs import unchanged
from tests.running.loop.test_hardened import EXACT, PARAMS, ROSTER, Ones


def train(out, backend, **options):
    return fp.averaging(EXACT, roster=ROSTER, params=PARAMS, out=out, **options)(backend)


@pytest.mark.slow
def test_a_copy_and_a_backup_are_refused_and_charge_nothing(tmp_path):
    folder, anchor = tmp_path / "run", tmp_path / "elsewhere.anchor"
    with pytest.raises(KeyboardInterrupt):
        train(folder, Ones(ends_in=2), secure=True, anchor=anchor)
    copy = shutil.copytree(folder, tmp_path / "copy")
    with unchanged(folder), refuses(ValueError, "--anchor"):
        train(folder, Ones(), secure=True)
    # The lost charge stays spent.
    assert train(folder, Ones(), secure=True, anchor=anchor).rounds == 2
    assert verify_run(folder, anchor=anchor).ok
    with unchanged(copy), refuses(ValueError, anchor):
        train(copy, Ones(), secure=True, anchor=anchor)
    assert not verify_run(copy, anchor=anchor).ok


def test_what_cannot_be_anchored_is_refused_before_anything(tmp_path):
    anchor, inside = tmp_path / "elsewhere.anchor", tmp_path / "new" / "anchor"
    with refuses(ValueError, "anchor", "out"):
        fp.averaging(EXACT, roster=ROSTER, params=PARAMS, anchor=anchor)
    train(tmp_path / "run", Ones())
    with pytest.raises(ValueError):
        train(tmp_path / "run", Ones(), anchor=anchor)
    with refuses(ValueError, inside):
        train(tmp_path / "new", Ones(), anchor=inside)
