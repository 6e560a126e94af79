"""Sentences with two owners, trained one by one: the run, its statement, and the compared study."""

import json

import pytest

from fedpriv.datasets.stackexchange.splits import Split
from fedpriv.experiments.load import load_experiment
from fedpriv.privacy.statement.statement import run_statement
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.report.page import write_report
from fedpriv.runs.prepared import start_run
from simulations.threads.methods import METHODS, OWNED
from tests.harness.resumed import resume_run
from tests.laws.test_raw_deletion import LITTLE, community, imported

NAME = "simulations.threads.owner_tags:dp_sgd_tags"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return imported(tmp_path_factory.mktemp("site") / "dump", list(community()), **LITTLE)


def experiment(site, **more):
    options = {"corpus": str(site.directory), "batch-size": 20, "steps": 4, "eval-every": 2}
    return load_experiment(NAME).with_options(options | more)


@pytest.mark.slow
def test_the_run_is_of_owners_says_so_and_verifies(site, tmp_path):
    start_run(experiment(site, **{"examples-per-owner": 3}), NAME, None, tmp_path / "run").run()
    assert verify_run(tmp_path / "run").ok
    document = json.loads((tmp_path / "run" / "experiment.json").read_bytes())
    assert document["plan"]["unit"] == "owner"
    assert document["plan"]["mechanism"]["recorded"]["event"]["devices"] == 3
    listed = site.view(split=Split(owners="all", examples_per_owner=3)).listed
    assert document["plan"]["mechanism"]["recorded"]["num_users"] == len(listed)
    statement = run_statement(tmp_path / "run")
    assert statement.protects["examples_per_owner"] == 3
    assert "per owner" in statement.headline
    assert "unit: owner" in write_report(tmp_path / "run").read_text("utf-8")


@pytest.mark.slow
def test_it_is_resumed_on_the_same_list_and_price(site, tmp_path):
    broken = start_run(
        experiment(site, **{"examples-per-owner": 3}), NAME, None, tmp_path / "run", secure=True
    )

    class Stopped(Exception):
        pass

    def stop(record):
        raise Stopped

    with pytest.raises(Stopped):
        broken.run(on_round=stop)
    broken.folder.close()
    resume_run(tmp_path / "run").run()
    found = verify_run(tmp_path / "run")
    assert found.ok and found.epsilon is not None and found.epsilon.unit == "owner"
    assert found.num_charges == 4


@pytest.mark.slow
def test_without_a_bound_the_unit_is_a_sentence(site, tmp_path):
    start_run(experiment(site), NAME, None, tmp_path / "run").run()
    assert run_statement(tmp_path / "run").protects["unit"] == "example"


def test_the_study_compares_like_with_like():
    for name in ("public start", "federated"):
        plain, wider = METHODS[name], OWNED[f"{name}, owners all"]
        assert wider.options.keys() == plain.options.keys()
        for epsilon, options in wider.options.items():
            assert dict(options) == {**plain.options[epsilon], "owners": "all"}
    assert OWNED["public start"] is METHODS["public start"]
