"""A ledger written anew with another noise: what `verify` cannot see, and an anchor does."""

import json
import math

import pytest

from fedpriv.experiments.load import load_experiment
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.runs.prepared import start_run
from tests.cli.typed import run
from tests.harness.command_line import fedpriv
from tests.harness.resealed import reseal
from tests.harness.tag_runs import OPTIONS

TRUE, CLAIMED = 0.72, 5.0


def with_less_epsilon(kind, fields):
    """Have a line claim the noise that the run never had."""
    text = json.dumps(fields)
    assert kind != "charge" or str(TRUE) in text
    return json.loads(text.replace(str(TRUE), str(CLAIMED)))


@pytest.fixture(scope="module")
def rechained(tiny_corpus, tmp_path_factory):
    """A run of σ 0.72 with an anchor outside it, whose folder was rewritten to claim 5."""
    place = tmp_path_factory.mktemp("rechained")
    anchor = place / "elsewhere.anchor"
    chosen = load_experiment("dp-fedavg-tags").with_options(
        OPTIONS | {"noise-multiplier": TRUE, "rounds": 2}
    )
    start_run(chosen, "dp-fedavg-tags", tiny_corpus, place / "run", anchor=anchor).run()
    folder = place / "run"
    honest = verify_run(folder, anchor=anchor)
    assert honest.ok and honest.epsilon is not None
    document = json.loads((folder / "experiment.json").read_text("utf-8"))
    claimed = json.loads(json.dumps(document).replace(str(TRUE), str(CLAIMED)))
    reseal(folder, with_less_epsilon, **claimed)
    for name in ("summary.json", "rounds.jsonl"):
        (folder / name).unlink()
    return folder, anchor, honest


@pytest.mark.slow
def test_without_its_anchor_it_verifies_at_another_epsilon(rechained):
    folder, _, honest = rechained
    found = verify_run(folder)
    assert found.ok and found.epsilon.value < honest.epsilon.value / 10
    assert math.isfinite(honest.epsilon.value)


def test_its_anchor_finds_it(rechained):
    folder, anchor, _ = rechained
    found = verify_run(folder, anchor=anchor)
    assert not found.ok
    assert "anchor" in {check.name for check in found.checks if not check.ok}


def test_verify_says_first_what_it_cannot_find(rechained):
    folder, _, honest = rechained
    ended = run("verify", folder)
    assert "four things cannot be found" in " ".join(ended.stdout.split()).partition(" ok ")[0]
    for found in (verify_run(folder), honest):
        assert next(iter(found.to_json())) == "not_found"
    assert len(verify_run(folder).to_json()["not_found"]) == 4
    assert honest.to_json()["not_found"] == []
    anchored = fedpriv("verify", folder, "--anchor", folder.parent / "elsewhere.anchor")
    assert anchored.exit_code == 1 and "WRONG" in anchored.stdout
