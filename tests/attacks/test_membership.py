"""The attack on runs of a tiny corpus: who is who, what is found, and what is refused."""

import json

import numpy as np
import pytest

import fedpriv
from fedpriv.attacks.membership import attack_membership, attack_runs
from fedpriv.attacks.outcome import auc, describe_membership, with_interval, write_membership_plot
from tests.harness.refusals import refuses


def trained(corpus, folder, name="fedavg-tags", **options):
    """A run without privacy, unless another is named, that learns its users by heart."""
    given = {"rounds": 30, "cohort": 30, "local_learning_rate": 20.0, "local_epochs": 4}
    fedpriv.run(name, folder, corpus=corpus.directory, progress=False, **given | options)
    return folder


@pytest.fixture(scope="module")
def overfit(tiny_corpus, tmp_path_factory):
    """Thirty members, trained on until they are known by heart."""
    return trained(tiny_corpus, tmp_path_factory.mktemp("runs") / "overfit", users=30)


@pytest.mark.slow
def test_members_of_an_overfit_model_are_found(overfit):
    found = attack_membership(overfit)
    assert len(found.scores.inside) == 30
    assert "beyond its first `users`" in found.nonmembers
    assert with_interval(found.scores, auc).low > 0.5  # 30 against 29 users
    assert found.control is not None
    assert auc(found.scores) > auc(found.control) + 0.1  # it is training that tells them apart


@pytest.mark.slow
def test_nonmembers_are_in_nothing(overfit, tiny_corpus):
    view = tiny_corpus.view(users=30)
    whole = tiny_corpus.view()
    left = [user for user in whole.roster[30:] if whole.num_examples(user, "train")]
    assert len(attack_membership(overfit).scores.outside) == len(left)
    assert not set(left) & {*view.roster, *view.public_users}


@pytest.mark.slow
def test_what_is_said_and_written(overfit, tmp_path):
    found = attack_membership(overfit)
    said = dict(describe_membership(found))
    assert said["privacy"].startswith("simulated ε = ∞")
    assert "simulations only" in said["note"]
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert [one["false_positives"] for one in document["true_positives"]] == [0.05, 0.1]
    assert document["true_positives"][0]["allowed_by_epsilon"] == 1.0
    for name in ("one.svg", "two.svg"):
        write_membership_plot(found, tmp_path / name)
    first, second = ((tmp_path / name).read_bytes() for name in ("one.svg", "two.svg"))
    assert first == second and b"Membership attack on fedavg-tags" in first


@pytest.mark.slow
def test_runs_are_pooled_if_they_are_of_one_kind(overfit, tiny_corpus, tmp_path):
    one, two = attack_membership(overfit), attack_runs([overfit, overfit])
    assert two.num_runs == 2 and len(two.scores.inside) == 2 * len(one.scores.inside)
    assert auc(two.scores) == pytest.approx(auc(one.scores))
    assert "2 runs pooled" in dict(describe_membership(two))["privacy"]
    private = {"rounds": 1, "noise_multiplier": 1.0, "users": 30}
    folder = trained(tiny_corpus, tmp_path / "run", "dp-fedavg-tags", **private)
    with pytest.raises(ValueError):
        attack_runs([overfit, folder])


def test_a_whole_roster_is_held_against_public_users(tiny_corpus, tmp_path):
    """Of which this corpus has twelve: too few, and that is said."""
    folder = trained(tiny_corpus, tmp_path / "run", rounds=1)
    with refuses(ValueError, 20):
        attack_membership(folder)


@pytest.mark.slow
def test_secure_runs_and_changed_folders_are_refused(tiny_corpus, overfit, tmp_path):
    private = {"rounds": 1, "noise_multiplier": 1.0, "users": 30, "secure": True}
    folder = trained(tiny_corpus, tmp_path / "secure", "dp-fedavg-tags", **private)
    with pytest.raises(ValueError):
        attack_membership(folder)
    file = folder / "experiment.json"
    file.write_text(file.read_text("utf-8").replace('"secure"', '"simulation"'), "utf-8")
    with pytest.raises(ValueError):
        attack_membership(folder)


def test_losses_by_user_are_the_task_s_own(tiny_corpus):
    from fedpriv.experiments.build import make_task
    from fedpriv.tasks.tag_prediction import evaluate_tags

    task = make_task(fedpriv.experiment("fedavg-tags"), tiny_corpus)
    generator = np.random.default_rng(0)
    view = tiny_corpus.view()
    params = {
        "kernel": generator.normal(size=(len(view.words), len(view.tags))).astype(np.float32),
        "bias": np.zeros(len(view.tags), np.float32),
    }
    losses, numbers = task.user_losses(params, view.roster)
    for place, user in enumerate(view.roster):
        examples = view.examples(user, "train")
        assert numbers[place] == len(examples)
        found = evaluate_tags(params, examples, "unit-norm")
        if found is None:
            assert np.isnan(losses[place])
        else:
            assert losses[place] == pytest.approx(found.totals["loss"].value, rel=1e-6)
