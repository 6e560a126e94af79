"""Law: whatever prints the ε of a run that knows private things says what that ε does not cover."""

import json
import re
import sys
from types import ModuleType

import numpy as np
import pytest

from fedpriv.experiments.averaging import CentralExperiment
from fedpriv.mechanisms import SideInformation
from fedpriv.privacy.statement.coverage import FLOATS
from tests.datasets.corpus.sentences import write_counted
from tests.harness import shown
from tests.harness.command_line import fedpriv
from tests.tasks import people
from tests.tasks.sixty import sixty

MARK = "does NOT cover"
SIDE = "side information taken from"


def central(source="public", listed=(), **options):
    provenance = {
        "features": {"vocabulary": {"source": "private" if listed else "public", "words": 2000}},
        "words": 2000,
        "private_side_information": list(listed),
    }
    scales = SideInformation(
        multiplier={"weight": np.ones(5, np.float32)}, source=source, description="counted words"
    )
    task = sixty(side={"frequency": lambda: scales}, provenance=provenance)
    return CentralExperiment(
        name="central",
        description="A test.",
        task=lambda experiment, corpus: task,
        batch_size=6,
        steps=4,
        eval_every=2,
        delta=1e-3,
    ).with_options({"noise_multiplier": 1.0, "learning_rate": 0.5, **options})


def module(source):
    made = people.task()
    made.side_information = lambda: SideInformation(
        multiplier={"weight": np.ones((2, 1), np.float32)}, source=source, description="counted"
    )
    return people.experiment(
        made, delta=0.01, rounds=4, cohort=2.0, precondition="local", side_information="own"
    )


TAGS = (
    *("--rounds", 4, "--cohort", 1, "--delta", 0.01, "--noise-multiplier", 1),
    *("--start", "fresh"),
)
# Experiment, its options, and what its ε does not cover.
KINDS = {
    "central": (
        "coverage_test:central",
        (),
        ["vocabulary taken from private examples", f"{SIDE} private examples"],
    ),
    "federated module": ("coverage_test:dense", (), [f"{SIDE} rostered users"]),
    "tags": (
        "adadps-tags",
        TAGS,
        [
            "vocabulary, tag list and word counts taken from rostered users",
            f"{SIDE} rostered users",
        ],
    ),
}


def public(reference):
    return reference if reference == "adadps-tags" else f"{reference}_public"


@pytest.fixture(autouse=True)
def known(monkeypatch):
    side = {"preconditioner": "side-information"}
    found = ModuleType("coverage_test")
    found.central = lambda: central("private", ("vocabulary",), **side)
    found.central_public = lambda: central(**side)
    found.ideal = lambda: central(preconditioner="ideal", micro_batch=2)
    found.dense = lambda: module("private")
    found.dense_public = lambda: module("public")
    monkeypatch.setitem(sys.modules, "coverage_test", found)


def call(*arguments, status=0):
    result = fedpriv(*arguments)
    assert result.exit_code == status, result.output
    return result


def words(page):
    """What a page says, and what is read aloud of its pictures."""
    return shown.words(page + " ".join(re.findall(r'aria-label="([^"]*)"', page)))


def outputs(tmp_path, reference, options, published, other=("--seed", 1)):
    """Every text in which a run's ε is printed, and the JSON documents that hold it.

    A second run with other options is there to be compared with.
    """
    folder, more = tmp_path / "run", ()
    if "tags" in reference:
        more = ("--corpus", write_counted(tmp_path / "corpus", published).directory)
    ran = call("run", reference, *options, *more, "--out", folder)
    twin = tmp_path / "twin"
    told = json.loads(
        call("run", reference, *options, *more, *other, "--out", twin, "--json").stdout
    )
    page, card = tmp_path / "compare.html", tmp_path / "model" / "README.md"
    compared = call("compare", folder, twin, "--out", page)
    call("export", folder, "--to", card.parent)
    report = (folder / "report.html").read_text()
    head = report[report.index("<header>") : report.index("</header>")]
    side_by_side = page.read_text()
    texts = {
        "run": next(x for x in ran.stdout.splitlines() if x.startswith("privacy")),
        "verify": call("verify", folder).stdout,
        "compare": compared.stdout,
        "comparison page": words(side_by_side),
        "comparison table": words(side_by_side.partition("<tbody>")[2].partition("</tbody>")[0]),
        "report": words(report),
        "headline": words(head),
        "ε panel": words(report[report.index("ε spent") :].partition("<svg")[0]),
        "statement": words(report[report.index("What the privacy guarantee says") :]),
        "card": card.read_text(),
        "card's figure": next(x for x in card.read_text().splitlines() if x.startswith("| ε |")),
    }
    documents = {
        "run --json": told,
        "summary.json": json.loads((folder / "summary.json").read_text()),
        "verify --json": json.loads(call("verify", folder, "--json").stdout),
        "compare --json": json.loads(call("compare", folder, twin, "--json").stdout)[0],
    }
    return texts, documents


#: Arguments of a run that knows nothing private, and what its ε does not cover.
MODES = {
    "simulation": ((), []),
    "secure": (("--secure", "-s", "exact-sum=true"), []),
    # Noise in floating point betrays sums: its ε holds in no arithmetic that was done.
    "secure in floats": (("--secure", "-s", "exact-sum=false"), [FLOATS]),
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["private", *MODES])
@pytest.mark.parametrize("kind", KINDS)
def test_every_epsilon_goes_with_what_it_does_not_cover(tmp_path, kind, mode):
    """And one that covers everything bears no mark."""
    reference, options, phrases = KINDS[kind]
    if mode != "private":
        reference, (more, phrases) = public(reference), MODES[mode]
        options = (*options, *more)
    secure = "--secure" in options
    other = () if secure else ("--seed", 1)
    texts, documents = outputs(tmp_path, reference, options, mode == "private", other)
    for name, text in texts.items():
        whole = " ".join(text.split())
        for phrase in ["ε", MARK, *phrases] if phrases else []:
            assert phrase in whole, (name, phrase, text)
        assert phrases or ("NOT cover" not in whole and "‡" not in whole), name
    for name, document in documents.items():
        assert 0 < document["epsilon"] < 100, name
        assert document["epsilon_does_not_cover"] == phrases, name
    if secure:
        hardened = "NOT hardened" if phrases else "hardened"
        assert f"Floating point: {hardened}" in texts["statement"]
    assert ("simulated" in texts["run"]) is not secure


@pytest.mark.parametrize("kind", [*KINDS, "ideal"])
def test_a_secure_run_refuses_private_knowledge(tmp_path, kind):
    reference, options, phrases = KINDS.get(kind, ("coverage_test:ideal", (), [SIDE]))
    more = ()
    if "tags" in reference:
        more = ("--corpus", write_counted(tmp_path / "corpus", True).directory)
    out = tmp_path / "run"
    failed = call("run", reference, *options, *more, "--secure", "--out", out, status=2)
    assert all(phrase in failed.stderr for phrase in phrases) and not out.exists()


@pytest.mark.slow
def test_noise_without_a_guarantee_is_said_in_every_output(tmp_path):
    """The ideal preconditioner looks at clean private gradients."""
    texts, documents = outputs(tmp_path, "coverage_test:ideal", (), published=False)
    stddev = "standard deviation 2 is added"
    for name, text in texts.items():
        if not name.startswith("compar"):
            whole = " ".join(text.split())
            assert stddev in whole, (name, whole)
            assert "clean gradients of private examples" in whole, name
        assert "no noise" not in text and "without noise" not in text.lower(), name
    for name, document in documents.items():
        assert document["epsilon"] is None and document["epsilon_does_not_cover"] == [], name
    assert stddev in documents["verify --json"]["reason"]
    assert documents["compare --json"]["private"] is False
    assert "Not private" in texts["headline"] and "not private" in texts["compare"]


@pytest.mark.parametrize("damage", ["gone", "edited"])
def test_without_the_documents_own_word_nothing_is_claimed_to_be_covered(tmp_path, damage):
    folder = tmp_path / "run"
    call("run", "coverage_test:central_public", "--out", folder)
    file = folder / "experiment.json"
    if damage == "gone":
        file.unlink()
    else:
        file.write_text(json.dumps({**json.loads(file.read_text()), "side_information": None}))
    shown = call("verify", folder, status=1).stdout
    assert f"{MARK}: whatever experiment.json would name" in shown
