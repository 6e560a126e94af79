"""Every experiment there is runs two rounds."""

import pytest

from fedpriv.experiments.build import build, takes_corpus
from fedpriv.experiments.load import find_experiments, load_experiment
from fedpriv.experiments.tasks import EncodedTagPredictionTask, TagPredictionTask
from fedpriv.rng import Key
from fedpriv.runs.backends import backends_of
from fedpriv.training.work import as_works
from tests.experiments.small import all_finite, run_some
from tests.harness.refusals import refuses
from tests.harness.tiny_bert import embed_tiny
from tests.harness.toy_users import experiment

# Others bring data of their own, and have tests beside their tasks.
OF_USERS = sorted(
    name
    for name in find_experiments()
    if (made := load_experiment(name)).unit == "user" and takes_corpus(made.task)
)


@pytest.mark.slow
def test_its_name_is_its_own(subtests):
    for name in sorted(find_experiments()):
        with subtests.test(name=name):
            made = load_experiment(name)
            assert made.name == name and made.description and made.runs_on("serial")


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_USERS)
def test_every_experiment_runs_two_rounds_on_the_serial_backend(
    tiny_corpus, name, tmp_path, monkeypatch
):
    made = load_experiment(name)
    rounds, fit = [1, 2], {"rounds": 3, "delta": 1e-2}
    if isinstance(made.task, EncodedTagPredictionTask):
        pytest.importorskip("transformers", reason="the extra `pretrained` is not installed")
        monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "cache"))
        fit |= embed_tiny(tiny_corpus, tmp_path / "tiny")
    if isinstance(made.task, TagPredictionTask):
        fit |= {"roster": None, "users": None, "cohort": None}
    if getattr(made, "release_preconditioner", None) and "delay_plain" in str(made.options()):
        fit |= {"delay-plain": 1}
    if made.method == "agd":
        fit = {"iterations": 4, "num-steps": 3, "delta": 1e-2}
    elif made.method == "bolt-on":  # which releases once
        rounds, fit = [1], {"users-per-update": 20}
    components = build(made.with_options(fit), tiny_corpus)
    assert all(work.thread_safe for work in as_works(components.trainer).values())
    before = components.task.init_params(Key.simulation(0))
    records = run_some(components, len(rounds))
    assert [record.released.round_num for record, _ in records] == rounds
    attempts = rounds if components.plan.charged_once and len(rounds) > 1 else [1] * len(rounds)
    assert [record.released.attempt for record, _ in records] == attempts  # rows go on
    assert all(record.diagnostics.num_failed == 0 for record, _ in records)
    params = records[-1][1].params
    assert all_finite(params) and any((params[n] != before[n]).any() for n in params)
    private = made.options().get("noise") != "none"
    assert components.plan.is_private == private
    assert (records[-1][0].released.epsilon is not None) == private


@pytest.mark.parametrize("name", ["dp-fedavg-tags", "mnist-users"])
def test_users_are_carried_by_every_backend(name):
    assert backends_of(load_experiment(name)) == ["serial", "ray", "flower"]


def test_trainers_of_modules_are_not_shared_by_threads():
    """They keep a model that no two threads may use at once."""
    assert not any(w.thread_safe for w in as_works(build(experiment()).trainer).values())


def test_names_that_are_not_there():
    with refuses(ValueError, "adadps-tags"):
        load_experiment("adadps-tag")
    with refuses(ValueError, "fedpriv list"):
        load_experiment("zzzzzz")
    with refuses(ValueError, "no_such_module"):
        load_experiment("no_such_module:thing")
    with refuses(ValueError, "thing"):
        load_experiment("fedpriv.experiments.ready_made.tags:thing")
    with pytest.raises(ValueError):
        load_experiment("builtins:dict")
