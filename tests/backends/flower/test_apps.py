"""The ServerApp and the ClientApp of the bundle, over a grid within this process."""

from __future__ import annotations

import json
import tomllib

import numpy as np
import pytest
from safetensors.numpy import load_file

import fedpriv as fp
from fedpriv.backends.flower.messages import read_request
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.parts import SERVER, cut_corpus
from fedpriv.datasets.stackexchange.splits import Split
from fedpriv.experiments.build import build
from fedpriv.experiments.load import load_experiment
from fedpriv.mechanisms import Bound
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.runs.attendance import AllUsersFailedError
from fedpriv.runs.backends import serial
from fedpriv.runs.document import read_document
from fedpriv.runs.prepared import start_run
from tests.backends.flower.conftest import Gone
from tests.harness.refusals import refuses
from tests.running.selected import topical

NUM_NODES, NUM_ROUNDS = 3, 3


@pytest.mark.slow
@pytest.mark.parametrize("server", ["part", "whole"])
def test_a_deployments_noise_is_of_what_its_server_reads(deploy, tiny_corpus, tmp_path, server):
    """Nodes' sums are the simulation's; so is the model where the server reads the same corpus."""
    cut_corpus(Corpus.open(tiny_corpus), tmp_path / "parts", nodes=NUM_NODES)
    read = {"part": tmp_path / "parts" / SERVER, "whole": tiny_corpus}[server]
    deploy(out=tmp_path / "run", select="last", corpus=read, parts=tmp_path / "parts")
    experiment = load_experiment("adadps-tags").with_options(
        read_document(tmp_path / "run")["experiment"]
    )
    start_run(experiment, "adadps-tags", Corpus.open(tiny_corpus), tmp_path / "simulated").run()
    found, simulated = fp.load(tmp_path / "run"), fp.load(tmp_path / "simulated")
    equal = [np.array_equal(found.params[n], array) for n, array in simulated.params.items()]
    assert equal == [server == "whole"] * len(equal)
    assert found.summary["epsilon"] == simulated.summary["epsilon"]


@pytest.mark.slow
@pytest.mark.parametrize("parted", [False, True], ids=["whole corpus", "parts"])
def test_settings_and_the_returned_model_are_those_of_one_process(
    deploy, tmp_path, parted, draws_of
):
    """Bit for bit: what the server chose from the data's size, each release, and the selection.

    A node with a part of its own has no public text to choose by.
    """
    corpus, places = topical.make(tmp_path / "c"), {"corpus": tmp_path / "c"}
    if parted:
        cut_corpus(corpus, tmp_path / "parts", nodes=NUM_NODES, split=Split(selecting=True))
        places = {"corpus": tmp_path / "parts" / SERVER, "parts": tmp_path / "parts"}
    given = {"target-epsilon": 40.0, "rounds": 3, "delta": 1e-3, "eval-every": 3}
    unset = {"noise-multiplier": "", "cohort": ""}
    deploy(out=tmp_path / "run", **given, **unset, **places)
    chosen = load_experiment("adadps-tags").with_options(given)
    everybody = build(chosen, corpus)
    draws_of(tmp_path / "run")
    start_run(
        chosen,
        "adadps-tags",
        Corpus.open(places["corpus"]),
        tmp_path / "alone",
        make_backend=lambda experiment, components: serial(experiment, everybody),
    ).run()
    documents = [read_document(tmp_path / name) for name in ("run", "alone")]
    assert documents[0]["settings"] == documents[1]["settings"]
    chosen = documents[0]["settings"]["chosen"]
    assert chosen == ["cohort", "bound.l2_clip_norm", "start.factor"]
    assert documents[0]["experiment"] == documents[1]["experiment"]
    summaries = [fp.load(tmp_path / name).summary for name in ("run", "alone")]
    assert summaries[0]["selection"] == summaries[1]["selection"]
    assert summaries[0]["selection"]["judged"]
    for name in ("checkpoints/round-000003.safetensors", "selected.safetensors"):
        left, right = (load_file(tmp_path / run / name) for run in ("run", "alone"))
        assert set(left) == set(right) and all(np.array_equal(left[n], right[n]) for n in left)


OWN_BOUND = """
import json
from dataclasses import dataclass, replace

from fedpriv.experiments.load import load_experiment
from fedpriv.mechanisms import Clip, Rounded
from tests.harness.other_components import with_components


@dataclass(frozen=True, slots=True, kw_only=True)
class HalvingOfAFile(Clip):
    def factors(self, norms, clip_norm=None):
        return 0.5 * Clip.factors(self, norms, clip_norm)


def halved(made):
    bound = Rounded(bound=HalvingOfAFile(l2_clip_norm=0.25))
    mechanism = replace(made.plan.live_mechanism, bound=bound)
    return replace(made, plan=replace(made.plan, mechanism=mechanism))


def halving():
    plain = load_experiment("adadps-tags").with_options({"local-epochs": 1})
    return with_components(plain, halved, name="own")
"""


def test_a_bound_of_the_experiments_own_file_is_made_on_nodes(deploy, tmp_path, monkeypatch):
    monkeypatch.setattr(Bound, "kinds", dict(Bound.kinds))
    (tmp_path / "own.py").write_text(OWN_BOUND, "utf-8")
    grid = deploy(experiment=f"{tmp_path}/own.py:halving", out=tmp_path / "run", rounds=1)
    trained = [sent for sent in grid.requests if sent.metadata.message_type == "train"]
    bounds = {read_request(sent.content).attempt.bound for sent in trained}
    assert [type(bound.bound).__name__ for bound in bounds] == ["HalvingOfAFile"]
    text = (tmp_path / "run" / "diagnostics.jsonl").read_text("utf-8")
    assert [json.loads(line)["num_failed"] for line in text.splitlines()] == [0]


def test_a_bound_that_a_node_does_not_know_is_made_nowhere(deploy, tmp_path, monkeypatch):
    """As where its class is in the server's experiment and not in the node's."""
    monkeypatch.setattr(Bound, "kinds", dict(Bound.kinds))
    (tmp_path / "own.py").write_text(OWN_BOUND.replace("HalvingOfAFile", "Unlisted"), "utf-8")

    def read(content):
        with monkeypatch.context() as node:
            node.delitem(Bound.kinds, "Unlisted")
            return read_request(content)

    monkeypatch.setattr("fedpriv.backends.flower.client.read_request", read)
    with refuses(AllUsersFailedError, "Unlisted"):
        deploy(experiment=f"{tmp_path}/own.py:halving", out=tmp_path / "run")
    assert not (tmp_path / "run" / "rounds.jsonl").exists()


@pytest.mark.slow
def test_a_run_goes_on_by_the_file_in_its_folder_alone(deploy, tmp_path, caplog):
    """The file is all that `flwr run --run-config FILE` needs."""
    asked = {"label": 'a "label" of ünicode\\', "options": "local.epochs = 2", "rounds": 4}
    deploy(out=tmp_path / "whole", **asked)
    with refuses(ValueError, f"{tmp_path}/whole/resume.toml"):
        deploy(out=tmp_path / "whole", **asked)
    with pytest.raises(Gone):
        deploy(out=tmp_path / "run", rounds_until_lost=2, **asked)
    found = tomllib.loads((tmp_path / "run" / "resume.toml").read_text("utf-8"))
    with refuses(ValueError, "--run-config"):
        deploy(resume=tmp_path / "run", rounds=4)
    deploy(**found)
    assert f"run folder: {tmp_path}/run, going on at round 3 (1 lost attempt spent)" in caplog.text
    assert verify_run(tmp_path / "run").ok
    # The round that was under way is charged: three of four are done.
    done = [fp.load(tmp_path / name).summary["rounds"] for name in ("run", "whole")]
    assert done == [3, 4]


@pytest.mark.slow
def test_a_simulation_does_not_go_on_as_a_secure_run(deploy, tmp_path):
    deploy(out=tmp_path / "run")
    before = (tmp_path / "run" / "ledger.jsonl").read_bytes()
    with pytest.raises(ValueError):
        deploy(resume=tmp_path / "run", secure=True)
    assert (tmp_path / "run" / "ledger.jsonl").read_bytes() == before


def test_a_secure_run_on_nodes_without_keys_is_refused_before_there_is_a_folder(deploy, tmp_path):
    with refuses(ValueError, "node-users", "allow-unauthenticated-nodes"):
        deploy(out=tmp_path / "run", secure=True)
    assert not (tmp_path / "run").exists()
