"""Methods with plans of their own on Ray's workers: the run of one process, to the last bit."""

from dataclasses import replace

import numpy as np
import pytest

from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.runs.backends import on_ray
from fedpriv.runs.folder import RunFolder
from tests.harness.kills import killed
from tests.harness.resumed import resume_run
from tests.harness.tag_runs import checkpoint, ledger_state
from tests.running.methods.test_runs import OPTIONS, started

pytestmark = pytest.mark.ray


def backends(ray, name, corpus):
    ray.share = replace(ray.share, num_workers=2)
    return on_ray(ray, name, str(corpus.directory))


def charged(out):
    return [(charge.query, charge.event) for charge in ledger_state(out).charges]


def assert_same(out, oracle):
    found, expected = checkpoint(out), checkpoint(oracle)
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert np.any(array) and found[name].tobytes() == array.tobytes()
    assert charged(out) == charged(oracle)
    assert verify_run(out).ok


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_workers_end_where_one_process_ends(name, ray, tiny_corpus, tmp_path):
    started(name, tiny_corpus, tmp_path / "serial").run()
    started(name, tiny_corpus, tmp_path / "ray", backends(ray, name, tiny_corpus)).run()
    assert_same(tmp_path / "ray", tmp_path / "serial")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "place"), [("agd-tags", (RunFolder, "record")), ("bolt-on-tags", (Ledger, "release"))]
)
def test_what_was_cut_off_in_one_process_ends_alike_on_ray(name, place, ray, tiny_corpus, tmp_path):
    """A release after its sum was made: it is the same one there, or nothing would leave."""
    started(name, tiny_corpus, tmp_path / "whole").run()
    prepared = started(name, tiny_corpus, tmp_path / "cut")
    with killed(*place):
        prepared.run()
    resume_run(tmp_path / "cut", make_backend=backends(ray, name, tiny_corpus)).run()
    assert_same(tmp_path / "cut", tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_a_secure_run_is_like_any_other(name, ray, tiny_corpus, tmp_path):
    made = backends(ray, name, tiny_corpus)
    started(name, tiny_corpus, tmp_path / "run", made, secure=True).run()
    assert verify_run(tmp_path / "run").ok and len(charged(tmp_path / "run")) > 0
    assert not (tmp_path / "run" / "diagnostics.jsonl").exists()
