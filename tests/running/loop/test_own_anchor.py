"""`fedpriv.averaging` with an anchor: copies and backups of its folder are refused too."""

import shutil

import pytest

import fedpriv as fp
from fedpriv.privacy.ledger.anchor import anchors_of
from fedpriv.privacy.statement.verify import verify_run
from tests.running.loop.test_hardened import EXACT, PARAMS, ROSTER, Ones


@pytest.fixture
def anchor(tmp_path):
    """The arguments that give it."""
    return {"anchor": tmp_path / "elsewhere.anchor"}


def train(out, backend, **options):
    return fp.averaging(EXACT, roster=ROSTER, params=PARAMS, out=out, **options)(backend)


def charges(folder):
    return (folder / "ledger.jsonl").read_bytes().count(b'"charge"')


def kept(anchor):
    return anchors_of(anchor["anchor"])


@pytest.mark.slow
def test_a_copy_and_a_backup_are_refused_and_charge_nothing(tmp_path, anchor):
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(folder, Ones(ends_in=2), secure=True, **anchor)
    copy = shutil.copytree(folder, tmp_path / "copy")
    spent = charges(folder)
    with pytest.raises(ValueError, match="started with an anchor"):
        train(folder, Ones(), secure=True)
    assert charges(folder) == spent
    assert train(folder, Ones(), secure=True, **anchor).rounds == 2  # the lost charge stays spent
    assert verify_run(folder, anchors=kept(anchor)).ok
    with pytest.raises(ValueError, match="lacks line"):
        train(copy, Ones(), secure=True, **anchor)
    assert charges(copy) == spent
    assert not verify_run(copy, anchors=kept(anchor)).ok


def test_what_cannot_be_anchored_is_refused_before_anything(tmp_path, anchor):
    with pytest.raises(ValueError, match="needs out="):
        fp.averaging(EXACT, roster=ROSTER, params=PARAMS, **anchor)
    train(tmp_path / "run", Ones())
    with pytest.raises(ValueError, match="started without an anchor"):
        train(tmp_path / "run", Ones(), **anchor)
    with pytest.raises(ValueError, match="lies in the run folder"):
        train(tmp_path / "new", Ones(), anchor=tmp_path / "new" / "anchor")
