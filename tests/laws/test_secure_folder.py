"""Law: what a secure run writes down without a charge is the same without any rostered user's data.

Two corpora differ in the records of one rostered user. Whatever differs between the two folders was
computed from them; noised releases are charged, and nothing else may.
"""

import json

import numpy as np
import pytest

from fedpriv.datasets.importers.writer import Sentence
from fedpriv.experiments.averaging import CentralExperiment
from fedpriv.experiments.load import load_experiment
from fedpriv.report.page import write_report
from fedpriv.rng import Key
from fedpriv.runs.prepared import start_run
from tests.laws.test_roster_independence import without, write
from tests.tasks.sixty import sixty

OPTIONS = {"rounds": 1, "cohort": 4.0, "noise-multiplier": 1.0, "delta": 1e-3}
#: Of the release that was charged, of when and where, or keyed by a secret of the run's own.
FREE = {
    "experiment.json": {"corpus.path", "corpus.data_sha256"},
    "summary.json": {"accuracy_public", "recall_at_5_public"},
}


def sentences(seed=0):
    """Fifty threads, each with an asker, a title and tags, and with four sentences of its users."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(50):
        asker = f"u{rng.integers(20)}"
        title = [f"w{word}" for word in rng.integers(40, size=3)]
        tags = [f"t{tag}" for tag in rng.integers(10, size=2)]
        for user in [asker, *(f"u{one}" for one in rng.integers(20, size=3))]:
            found.append(
                Sentence(
                    user_id=user,
                    tokens=[f"w{word}" for word in rng.integers(40, size=rng.integers(1, 6))],
                    title_tokens=title,
                    tags=tags,
                    own_title=user == asker,
                    title_user_id=None if user == asker else asker,
                    thread=f"q{number}",
                )
            )
    return found


def flat(value, at=""):
    """Return the leaves of a JSON value by their paths."""
    if isinstance(value, dict) and value:
        return {
            path: leaf
            for name, inner in value.items()
            for path, leaf in flat(inner, f"{at}.{name}".lstrip(".")).items()
        }
    return {at: value}


@pytest.fixture
def same_entropy(monkeypatch):
    """Nothing differs by chance: both runs draw from one key."""
    monkeypatch.setattr(
        Key, "secure", classmethod(lambda cls: Key.from_bytes(bytes(range(32)), "secure"))
    )


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("corpora"), sentences()
    left, roster = without(found, "u1"), [f"u{number}" for number in range(20) if number % 3]
    assert len(left) < len(found)
    return write(folder / "with", found, roster), write(folder / "without", left, roster, 7)


def differs(left, right, free):
    ours, theirs = flat(left), flat(right)
    names = {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)}
    return {name for name in names if not any(name.startswith(one) for one in free)}


@pytest.mark.parametrize("name", ["dp-fedavg-tags", "adadps-tags"])
def test_a_secure_folder_says_nothing_that_a_rostered_users_records_change(
    corpora, same_entropy, tmp_path, name
):
    experiment = load_experiment(name).with_options({**OPTIONS, "l2-clip-norm": 0.5})
    a, b = (tmp_path / out for out in "ab")
    for corpus, out in zip(corpora, (a, b), strict=True):
        start_run(experiment, name, corpus, out, secure=True).run()
        write_report(out)
    assert sorted(file.name for file in a.iterdir()) == sorted(file.name for file in b.iterdir())
    for file, free in FREE.items():
        left, right = (json.loads((folder / file).read_text("utf-8")) for folder in (a, b))
        assert differs(left, right, free) == set(), file
    assert (a / "vocabulary.json").read_bytes() == (b / "vocabulary.json").read_bytes()
    assert (a / "backends.jsonl").read_bytes() == (b / "backends.jsonl").read_bytes()
    first = [json.loads((f / "ledger.jsonl").read_text("utf-8").split("\n")[0]) for f in (a, b)]
    assert differs(*first, {"hash", "run_id", "extra.experiment_sha256", "extra.started"}) == set()
    assert not any((a / name).exists() for name in ("diagnostics.jsonl", "by_user.safetensors"))


def test_the_law_could_fail_a_simulation_says_what_is_counted(corpora, tmp_path):
    experiment = load_experiment("dp-fedavg-tags").with_options(OPTIONS)
    documents = []
    for corpus, out in zip(corpora, ("a", "b"), strict=True):
        prepared = start_run(experiment, "dp-fedavg-tags", corpus, tmp_path / out)
        prepared.folder.close()
        documents.append(prepared.folder.document)
    found = differs(*documents, FREE["experiment.json"])
    assert "corpus.provenance.foreign_text_share" in found


DIGESTS = {
    "one file": "9" * 64,
    "files by name": {"train.gz": "a" * 64, "test.gz": "b" * 64},
    "in words": f"md5 {'c' * 32}",
}


def described(folder, secure, **provenance):
    """What a run's document says of where its training set is from."""
    made = CentralExperiment(
        name="central",
        description="A test.",
        batch_size=6,
        steps=2,
        task=lambda experiment: sixty(provenance=provenance),
        delta=1e-3,
    ).with_options({"noise_multiplier": 1.0})
    prepared = start_run(made, None, None, folder, secure=secure)
    prepared.folder.close()
    return prepared.folder.document["corpus"]["provenance"]


@pytest.mark.parametrize("source", DIGESTS.values(), ids=list(DIGESTS))
@pytest.mark.parametrize("secure", [True, False])
def test_checksums_of_the_training_set_are_a_simulations(tmp_path, source, secure):
    """They tell a training set from its neighbour, and no key stands before them."""
    found = described(tmp_path / "run", secure, source=source, credit="somebody")
    text = (tmp_path / "run" / "experiment.json").read_text("utf-8")
    assert "somebody" in text
    for digest in ("9" * 64, "a" * 64, "c" * 32):
        assert not (secure and digest in text)
    assert ("source" in found) != secure


def test_where_the_text_is_from_in_words_stays(tmp_path):
    found = described(tmp_path / "run", True, source="made up, seed 0")
    assert found == {"source": "made up, seed 0"}
