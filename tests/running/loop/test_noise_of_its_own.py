"""Two simulations at one seed add independent noise, unless they are the same experiment."""

import json

import numpy as np
import pytest

from fedpriv.checkpoints.store import CheckpointStore
from fedpriv.datasets.stackexchange.synthetic import Shape, synthesize
from fedpriv.rng import Key
from fedpriv.runs.document import read_document
from fedpriv.runs.noise_root import NOISE, NOT_TRAINED, noise_digest, noise_root
from tests.running.loop.tag_runs import ledger_state, start, stopping

PLAIN = {"server": "sgd", "aggregate": "none", "rounds": 1, "noise-multiplier": 50.0}
SHAPE = Shape(
    num_users=20, num_sentences=400, public_users=8, num_words=200, num_tags=10, num_topics=4
)
SMALL = {"shape": SHAPE, "max_words": 40, "max_tags": 3}


def released(corpus, out, **options):
    """Return what a round adds to the params of one and the same start, as one vector."""
    start(corpus, out, **{**PLAIN, "start": "fresh", **options}).run()
    params = CheckpointStore(out / "checkpoints").load(1)[0]
    return np.concatenate([params[name].ravel() for name in sorted(params)])


def alike(left, right):
    """Return the correlation of two releases that are nearly all noise."""
    return float(np.corrcoef(left, right)[0, 1])


# Of d independent coordinates the correlation has a standard deviation of 1/sqrt(d), here at most
# 0.1: beyond 0.7 it comes less than once in 10^10 runs. The seeds are fixed.


@pytest.mark.parametrize("change", [{"local-learning-rate": 0.01}, {"l2-clip-norm": 0.25}])
def test_two_experiments_at_one_seed_have_noise_of_their_own(tiny_corpus, tmp_path, change):
    one = released(tiny_corpus, tmp_path / "a")
    other = released(tiny_corpus, tmp_path / "b", **change)
    assert abs(alike(one, other)) < 0.7


def test_two_training_sets_at_one_seed_have_noise_of_their_own(tmp_path):
    """Were it the same, their difference would be that of the data, bare."""
    corpora = [synthesize(tmp_path / f"c{seed}", seed=seed, **SMALL) for seed in (1, 2)]
    views = [corpus.view() for corpus in corpora]
    assert len(views[0].words) == len(views[1].words)
    one, other = (
        released(corpus, tmp_path / f"run{number}") for number, corpus in enumerate(corpora)
    )
    assert one.shape == other.shape and abs(alike(one, other)) < 0.7


def test_what_is_measured_does_not_change_the_noise(tiny_corpus, tmp_path):
    one = released(tiny_corpus, tmp_path / "a")
    other = released(tiny_corpus, tmp_path / "b", eval_every=7)
    np.testing.assert_array_equal(one, other)


def test_the_digest_is_of_options_plan_and_data_and_not_of_who_works_or_where(
    tiny_corpus, tmp_path
):
    start(tiny_corpus, tmp_path / "run").folder.close()
    document = read_document(tmp_path / "run")
    digest = noise_digest(document)
    assert ledger_state(tmp_path / "run").extra[NOISE] == digest

    def changed(**changes):
        return noise_digest({**document, **changes})

    corpus, options = document["corpus"], document["experiment"]
    assert digest == changed(backend="ray", reference=None, versions={}, baseline={}, measures=[])
    assert digest == changed(corpus={**corpus, "path": "/elsewhere", "provenance": {}})
    assert digest == changed(experiment={**options, **dict.fromkeys(NOT_TRAINED, 3)})
    others = {
        changed(name="another"),
        changed(corpus={**corpus, "data_sha256": {"prepared": "0" * 64}}),
        changed(plan={**document["plan"], "num_rounds": 7}),
        *(changed(experiment={**options, name: "?"}) for name in {*options} - NOT_TRAINED),
    }
    assert digest not in others and len(others) == 3 + len(options) - len(NOT_TRAINED)


def test_a_secure_run_writes_no_digest_down(tiny_corpus, tmp_path):
    """It would be one of the data, without the secret that keys those of a secure run."""
    start(tiny_corpus, tmp_path / "run", secure=True).folder.close()
    assert NOISE not in ledger_state(tmp_path / "run").extra
    secure = Key.secure()
    assert noise_root(secure, {NOISE: "0" * 64}) is secure


def test_a_run_from_before_there_were_digests_keeps_the_noise_of_its_seed():
    root = Key.simulation(3)
    assert noise_root(root, {}) is root
    assert noise_root(root, {NOISE: "0" * 64}) != root != noise_root(root, {NOISE: "1" * 64})


def test_a_resumed_run_takes_its_digest_from_the_ledger(tiny_corpus, tmp_path, monkeypatch):
    from fedpriv.runs import folder
    from fedpriv.runs.prepared import resume_run

    whole = start(tiny_corpus, tmp_path / "whole", rounds=3)
    whole.run()
    with pytest.raises(KeyboardInterrupt):
        start(tiny_corpus, tmp_path / "cut", rounds=3, make_backend=stopping(1)).run()
    monkeypatch.setattr(folder, "noise_digest", lambda document: pytest.fail("made anew"))
    summary = resume_run(tmp_path / "cut").run()
    assert summary["rounds"] == 2
    assert json.loads((tmp_path / "cut" / "summary.json").read_text("utf-8"))["rounds"] == 2
    assert (
        ledger_state(tmp_path / "cut").extra[NOISE] == ledger_state(tmp_path / "whole").extra[NOISE]
    )
