"""Two simulations at one seed add independent noise, unless they are the same mechanism."""

from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

import fedpriv as fp
from fedpriv.checkpoints.store import CheckpointStore
from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.experiments.experiment import methods_of
from fedpriv.experiments.load import find_experiments
from fedpriv.mechanisms import Clip
from fedpriv.rng import Key
from fedpriv.runs import folder
from fedpriv.runs.document import read_document
from fedpriv.runs.loop import rounds
from fedpriv.runs.noise_root import (
    NOISE,
    NOT_TRAINED,
    noise_digest,
    noise_root,
    training_digest,
    unkept_noise_root,
)
from fedpriv.runs.prepared import resume_run
from tests.harness.tag_runs import interrupted, ledger_state, start
from tests.running.loop.test_hardened import EXACT, PARAMS, ROSTER, Ones

PLAIN = {"server": "sgd", "aggregate": "none", "rounds": 1, "noise-multiplier": 50.0}
READY_MADE = {name: make() for name, make in find_experiments().items()}
DOCUMENT = {
    "plan": {"num_rounds": 3},
    "corpus": {"data_sha256": {"prepared": "a"}, "frozen": {"base": "b"}},
    "start": {"kind": "file", "sha256": "c"},
}


def digest(experiment, **changes):
    return noise_digest(experiment, {**DOCUMENT, **changes})


def others(entry, value):
    """Yield values of an option that are not the one it has."""
    if entry.choices:
        yield from {*entry.choices} - {value}
    elif ", " in entry.takes and entry.type is str and "a word" not in entry.takes:
        yield from {*entry.takes.split(", ")} - {value}
    elif entry.type is bool:
        yield not value
    elif entry.type is str:
        yield f"{value or ''}x"
    else:
        yield from (v for v in (1, 2, 3, 0.5, 0.25, 7) if v != value)


def changed(experiment, entry):
    """Return the experiment with another value of an option; None where nothing else fits."""
    for value in others(entry, experiment.options()[entry.path]):
        try:
            return experiment.with_options({entry.path: value})
        except ValueError:
            continue
    return None


@pytest.mark.slow
@pytest.mark.parametrize("name", READY_MADE)
def test_every_option_that_a_chosen_part_reads_moves_the_root(name):
    """Of every method of every ready-made experiment."""
    seen = {}
    for method in methods_of(READY_MADE[name].unit):
        experiment = READY_MADE[name].with_options({"method": method})
        options, before = experiment.options(), digest(experiment)
        assert before not in seen, f"{method} has the noise of {seen[before]}"
        seen[before] = method
        entries = {entry.path: entry for entry in experiment._names.entries}
        assert {*options} - {"method"} <= {*entries}
        moved = 0
        for path in {*options} - {"method"}:
            other = changed(experiment, entries[path])
            if other is None:
                continue
            moved += 1
            assert (digest(other) == before) == (path in NOT_TRAINED), path
        assert moved >= 0.85 * (len(options) - 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", READY_MADE)
def test_nothing_else_of_an_experiment_moves_the_root(name):
    """No default that is spelled out, no option that is not there, no name."""
    experiment = replace(READY_MADE[name], automatic=())
    before = digest(experiment)
    assert digest(experiment.with_options(experiment.options())) == before
    assert digest(experiment.with_options({"delta": experiment.delta, "eval-every": 3})) == before
    for change in (
        {"name": "another"}, {"description": "Another."}, {"automatic": ("rounds",)}
    ):  # fmt: skip
        assert digest(replace(experiment, **change)) == before, change


@dataclass(frozen=True, slots=True, kw_only=True)
class Longest(Clip):
    """A user-defined bound."""

    kind: ClassVar[str] = "longest"


class Derived(FederatedExperiment):
    """An experiment whose parts may be user-defined."""


def test_the_name_stands_for_code_that_cannot_be_hashed():
    experiment = READY_MADE["dp-fedavg-tags"]
    derived = Derived(**{f.name: getattr(experiment, f.name) for f in fields(experiment)})
    for change in (
        {"bound": Longest(l2_clip_norm=0.5)},
        {"task": lambda experiment: None},
        {},
    ):
        custom = replace(derived if not change else experiment, **change)
        assert digest(custom) != digest(replace(custom, name="another")), change
        assert digest(custom) != digest(experiment)


def test_data_start_and_frozen_tensors_move_the_root():
    experiment = READY_MADE["dp-fedavg-tags"]
    described = {"name": "tags", "roster_sha256": "r", "num_users": 3, "num_public_users": 1}
    found = [
        digest(experiment),
        digest(experiment, plan={"num_rounds": 4}),
        digest(experiment, start={"kind": "file", "sha256": "d"}),
        digest(experiment, start={"kind": "fresh"}),
        digest(experiment, corpus={"data_sha256": {"prepared": "a"}, "frozen": None}),
        digest(experiment, corpus={"data_sha256": {"prepared": "b"}, "frozen": None}),
        digest(experiment, corpus=described),
        *(digest(experiment, corpus=described | {name: "x"}) for name in described),
    ]
    assert len({*found}) == len(found)


def released(corpus, out, **options):
    """Return what a round adds to the params of one and the same start, as one vector."""
    start(corpus, out, **{**PLAIN, "start": "fresh", **options}).run()
    params = CheckpointStore(out / "checkpoints").load(1)[0]
    return np.concatenate([params[name].ravel() for name in sorted(params)])


def alike(left, right):
    """Return the correlation of two releases that are nearly all noise.

    Of d independent coordinates its standard deviation is 1/sqrt(d), here at most 0.1: beyond 0.7
    it comes less than once in 10^10 runs. The seeds are fixed.
    """
    return float(np.corrcoef(left, right)[0, 1])


@pytest.mark.slow
def test_two_runs_at_one_seed_share_noise_only_where_they_are_one_mechanism(tiny_corpus, tmp_path):
    one = released(tiny_corpus, tmp_path / "a")
    for number, change in enumerate(({"local-learning-rate": 0.01}, {"l2-clip-norm": 0.25})):
        assert abs(alike(one, released(tiny_corpus, tmp_path / str(number), **change))) < 0.7
    np.testing.assert_array_equal(one, released(tiny_corpus, tmp_path / "b", eval_every=7))


def test_a_run_writes_its_digest_down_and_it_is_not_of_who_works_or_where(tiny_corpus, tmp_path):
    prepared = start(tiny_corpus, tmp_path / "run")
    prepared.folder.close()
    document = read_document(tmp_path / "run")
    written = ledger_state(tmp_path / "run").extra[NOISE]
    assert written == noise_digest(prepared.experiment, document)
    elsewhere = {**document["corpus"], "path": "/elsewhere", "provenance": {}}
    changes = {"backend": "ray", "reference": None, "versions": {}, "baseline": {}, "measures": []}
    assert written == noise_digest(
        prepared.experiment, {**document, **changes, "corpus": elsewhere, "label": "another"}
    )


def test_a_secure_run_writes_no_digest_down(tiny_corpus, tmp_path):
    """It would be one of the data, without the secret that keys those of a secure run."""
    start(tiny_corpus, tmp_path / "run", secure=True).folder.close()
    assert NOISE not in ledger_state(tmp_path / "run").extra
    secure = Key.secure()
    assert noise_root(secure, {NOISE: "0" * 64}) is secure


def test_nothing_is_keyed_by_the_seed_alone(tiny_corpus, tmp_path):
    """A simulation without a digest is refused, and one in memory has its plan's."""
    root = Key.simulation(3)
    assert noise_root(root, {NOISE: "0" * 64}) != root != noise_root(root, {NOISE: "1" * 64})
    with pytest.raises(ValueError):
        noise_root(root, {})
    prepared = start(tiny_corpus, tmp_path / "run")
    del prepared.ledger.extra[NOISE]
    backend = prepared.make_backend(prepared.experiment, prepared.components)
    with pytest.raises(ValueError):
        next(rounds(prepared.components, backend, root, folder=prepared.folder))
    prepared.folder.close()
    params, components = {"w": np.zeros(3, np.float32)}, prepared.components
    other = prepared.experiment.with_options({"local-learning-rate": 0.01})
    bare = SimpleNamespace(plan=components.plan, task=components.task)
    keys = [
        root,
        unkept_noise_root(root, components, params),
        unkept_noise_root(root, replace(components, experiment=other), params),
        unkept_noise_root(root, bare, params),
        unkept_noise_root(root, bare, {"w": np.zeros(4, np.float32)}),
    ]
    assert len({key.to_bytes() for key in keys}) == len(keys)
    digests = {training_digest(bare.plan, ("u1",), params, more) for more in (None, 1, 2)}
    assert len(digests | {training_digest(bare.plan, ("u2",), params)}) == 4


@pytest.mark.slow
def test_a_resumed_run_takes_its_digest_from_the_ledger(tiny_corpus, tmp_path, monkeypatch):
    whole = start(tiny_corpus, tmp_path / "whole", rounds=3)
    whole.run()
    cut = interrupted(tiny_corpus, tmp_path / "cut", 1, rounds=3)
    monkeypatch.setattr(folder, "noise_digest", lambda *of: pytest.fail("made anew"))
    assert resume_run(cut).run()["rounds"] == 2
    assert ledger_state(cut).extra[NOISE] == ledger_state(tmp_path / "whole").extra[NOISE]


def test_two_starts_at_one_seed_have_other_noise():
    """Were it the same, the difference of two releases would be that of the exact sums."""
    starts = [{name: array + shift for name, array in PARAMS.items()} for shift in (0.0, 1.0)]
    moved = []
    for params in starts:
        found = fp.averaging(EXACT, roster=ROSTER, params=params, seed=3)(Ones()).params
        moved.append({name: found[name] - array for name, array in params.items()})
    for name in PARAMS:  # every user's update is the same, whatever the start
        assert np.abs(moved[0][name] - moved[1][name]).max() > 1e-3
