"""The same seed gives the same run; secure runs share nothing."""

import numpy as np
import pytest

from fedpriv import json_lines
from fedpriv.backends import SerialBackend
from fedpriv.experiments.build import build
from fedpriv.privacy import accounting
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.rng import Key
from fedpriv.runs import loop
from fedpriv.runs.loop import accounted_rounds, rounds
from fedpriv.runs.noise_root import noise_root
from tests.harness.tag_runs import checkpoint, ledger_state, same, start
from tests.privacy.plans.clipped import clipped


def test_the_same_seed_gives_the_same_run_bit_for_bit(tiny_corpus, tmp_path):
    summaries = []
    for name in ("a", "b"):
        np.random.seed(len(name))
        summaries.append(start(tiny_corpus, tmp_path / name).run())
    for number in range(1, 7):
        assert same(checkpoint(tmp_path / "a", number), checkpoint(tmp_path / "b", number))
    for name in ("rounds", "diagnostics"):
        a, b = (json_lines.read(tmp_path / f / f"{name}.jsonl") for f in ("a", "b"))
        for line in a + b:
            line.pop("seconds", None)
        assert a == b and len(a) == 6
    for summary in summaries:
        del summary["run_dir"], summary["seconds_per_round"]
    assert summaries[0] == summaries[1]
    other = start(tiny_corpus, tmp_path / "c", seed=12)
    other.run()
    assert not same(checkpoint(tmp_path / "a", 6), checkpoint(tmp_path / "c", 6))


@pytest.mark.parametrize(("most", "priced"), [(20, [1, 2, 3, 4, 5, 6]), (5, [2, 2, 4, 4, 6, 6])])
def test_every_round_states_an_epsilon_that_is_no_smaller_than_its_charges_cost(
    most, priced, tiny_corpus, tmp_path, monkeypatch
):
    monkeypatch.setattr(loop, "_MOST_ACCOUNTED", most)
    start(tiny_corpus, tmp_path / "run").run()
    lines = json_lines.read(tmp_path / "run" / "rounds.jsonl")
    plan = ledger_state(tmp_path / "run").plan
    assert [line["epsilon_charges"] for line in lines] == priced
    for line in lines:
        assert line["epsilon"] == plan.epsilon(line["epsilon_charges"]).value
        assert line["epsilon"] >= plan.epsilon(line["round_num"]).value
    assert verify_run(tmp_path / "run").ok


@pytest.mark.parametrize("num_rounds", [1, 6, 19, 100, 1000])
@pytest.mark.parametrize("eval_every", [1, 2, 3, 7, 10, 2000])
def test_few_rounds_are_accounted_and_of_many_evaluated_ones(eval_every, num_rounds):
    plan = clipped(
        num_users=100, expected_cohort_size=10, num_rounds=num_rounds, l2_bound=1.0,
        noise_multiplier=1.0,
    )  # fmt: skip
    accounted = accounted_rounds(plan, eval_every)
    every = 1 if num_rounds <= 20 else eval_every
    evaluated = {*range(every, num_rounds + 1, every), num_rounds}
    assert accounted[-1] == num_rounds and set(accounted) <= evaluated
    assert list(accounted) == sorted(accounted) and len(accounted) <= 21
    assert len(evaluated) > 20 or set(accounted) == evaluated


def test_the_loop_prices_nothing_that_was_not_accounted_before_it(tiny_corpus, tmp_path):
    accounting._epsilon.cache_clear()
    prepared = start(tiny_corpus, tmp_path / "run")
    misses = []
    prepared.run(on_round=lambda record: misses.append(accounting._epsilon.cache_info().misses))
    assert len(misses) == 6 and misses[0] == misses[-1] > 0


def test_a_run_without_a_folder_is_the_same_run(tiny_corpus, tmp_path):
    prepared = start(tiny_corpus, tmp_path / "a")
    prepared.run()
    components = build(prepared.experiment, tiny_corpus)
    root = Key.simulation(11)
    noise = noise_root(root, prepared.ledger.extra)
    backend = SerialBackend(
        trainer=components.trainer, data=components.task.data, measure=components.task.evaluate
    )
    *_, (record, state) = rounds(components, backend, root, noise=noise)
    found = checkpoint(tmp_path / "a", 6)
    for name, array in state.params.items():
        np.testing.assert_array_equal(found[name], array)
        np.testing.assert_array_equal(
            found[f"ema/{name}"], state.memory["aggregate"]["average"][name]
        )
    assert record.released.round_num == 6


def test_secure_runs_share_nothing_and_keep_no_key(tiny_corpus, tmp_path, monkeypatch):
    made, secure = [], Key.secure
    monkeypatch.setattr(Key, "secure", classmethod(lambda cls: made.append(secure()) or made[-1]))
    for name in ("a", "b"):
        np.random.seed(0)
        summary = start(tiny_corpus, tmp_path / name, secure=True).run()
        assert summary["mode"] == "secure" == ledger_state(tmp_path / name).mode
    a, b = checkpoint(tmp_path / "a", 1), checkpoint(tmp_path / "b", 1)
    for name in a:
        assert len(np.intersect1d(a[name], b[name])) < 3
    # Of each run one, and one that noise was tried with beforehand.
    assert len({key.to_bytes() for key in made}) == len(made) == 4
    for key in made:
        for file in tmp_path.rglob("*"):
            if file.is_file():
                content = file.read_bytes()
                assert key.to_bytes() not in content
                assert key.to_bytes().hex().encode() not in content
