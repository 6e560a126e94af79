"""Adaptive descent in secure mode: hardened where every answer is of whole numbers, else marked."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fedpriv.experiments.agd import FederatedDescent
from fedpriv.experiments.build import build
from fedpriv.experiments.load import load_experiment
from fedpriv.mechanisms import Clip
from fedpriv.mechanisms.bounds import CappedTogether
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.privacy.statement.coverage import FLOATS, KEY
from fedpriv.privacy.statement.statement import run_statement
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.training.algorithm import Algorithm, is_exact
from fedpriv.training.dp_agd import AdaptiveDescent
from fedpriv.training.per_example.linear import LogisticGradients
from tests.harness.refusals import refuses
from tests.harness.resumed import resume_run
from tests.harness.tag_runs import ledger_state
from tests.running.methods.test_runs import AGD, CENTRAL, of_examples, started

BARE = {
    "gradient": ("gradient_bound", lambda self, task: Clip(l2_clip_norm=self.gradient_clip)),
    "losses": ("loss_bound", lambda self, n: CappedTogether(cap=self.loss_cap, num_coordinates=n)),
}


def secure(corpus, out):
    return started("agd-tags", corpus, out, secure=True)


def said_of(out):
    document = json.loads((out / "experiment.json").read_bytes())
    assert document["mode"] == "secure"
    return document["hardened"], " ".join(
        paragraph for part in run_statement(out).sections for paragraph in part.paragraphs
    )


@pytest.mark.slow
def test_by_user_it_is_hardened_and_draws_nothing_but_whole_numbers(
    tiny_corpus, tmp_path, monkeypatch
):
    drawn = []
    release = Gaussian.release

    def seen(self, total, noise, share):
        assert total.granularity and all(array.dtype == np.int64 for array in noise.values())
        assert all(array.dtype.kind == "i" for array in total.total.values())
        drawn.append(noise)
        return release(self, total, noise, share)

    prepared = secure(tiny_corpus, tmp_path / "run")  # a rehearsal on synthetic users is in floats
    monkeypatch.setattr(Gaussian, "release", seen)
    prepared.run()
    state = ledger_state(tmp_path / "run")
    gaussians = [charge for charge in state.charges if charge.event.kind == "gaussian"]
    assert len(drawn) == len(gaussians) > 1
    hardened, said = said_of(tmp_path / "run")
    assert hardened and "Floating point: hardened" in said
    verified = verify_run(tmp_path / "run")
    assert verified.ok and FLOATS not in verified.to_json()[KEY]


@pytest.mark.slow
@pytest.mark.parametrize("part", BARE)
def test_one_part_in_floating_point_marks_the_whole(part, tiny_corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(FederatedDescent, *BARE[part])
    secure(tiny_corpus, tmp_path / "run").run()
    hardened, said = said_of(tmp_path / "run")
    assert not hardened and "Floating point: NOT hardened" in said
    assert FLOATS in verify_run(tmp_path / "run").to_json()[KEY]


@pytest.mark.slow
@pytest.mark.parametrize("part", BARE)
def test_a_hardened_run_does_not_go_on_in_floating_point(part, tiny_corpus, tmp_path, monkeypatch):
    secure(tiny_corpus, tmp_path / "run").folder.close()
    with monkeypatch.context() as patch:
        patch.setattr(FederatedDescent, *BARE[part])
        with refuses(ValueError, tmp_path / "run"):
            resume_run(tmp_path / "run").run()
    assert not ledger_state(tmp_path / "run").charges
    resume_run(tmp_path / "run").run()


def test_an_answer_in_floating_point_is_refused_before_its_charge(
    tiny_corpus, tmp_path, monkeypatch
):
    """Whatever an algorithm says of its mechanisms: the door looks at each."""
    choice = AdaptiveDescent._choice

    def bare(self, *given):
        asked = choice(self, *given)
        together = CappedTogether(cap=self.losses.cap, num_coordinates=self.losses.num_coordinates)
        return replace(asked, mechanism=replace(asked.mechanism, bound=together))

    monkeypatch.setattr(AdaptiveDescent, "_choice", bare)
    prepared = secure(tiny_corpus, tmp_path / "run")
    with refuses(ValueError, "losses 1"):
        prepared.run()
    [charge] = ledger_state(tmp_path / "run").charges
    assert charge.query == "gradient"


class Silent(Algorithm):
    init = step = result = None


def test_who_does_not_say_what_it_asks_is_not_exact(tiny_corpus):
    made = build(load_experiment("agd-tags").with_options(AGD), tiny_corpus)
    assert is_exact(made.plan, made.algorithm) and not made.plan.is_exact
    silent = Silent()
    assert not is_exact(made.plan, silent)


def test_of_examples_losses_are_computed_together_and_so_it_is_not():
    made = build(of_examples(LogisticGradients, **CENTRAL["agd"]))
    gradient, choice = made.algorithm.mechanisms()
    assert gradient.is_exact and not choice.is_exact
    assert not is_exact(made.plan, made.algorithm)
