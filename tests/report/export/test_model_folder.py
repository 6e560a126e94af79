"""Exports: the right params, whole folders, honest cards; predictions computed by hand."""

import json
import math
import pickle
import re

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fedpriv.checkpoints.tensor_files import read_tensors, write_tensors
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.report.export import (
    TagModel,
    Vocabulary,
    export_run,
    load_model,
    read_vocabulary,
    vocabulary_bytes,
)
from fedpriv.report.run_record import read_run, spent
from fedpriv.report.wording import markdown_safe
from tests.harness.refusals import refuses
from tests.report.conftest import edit_rows

VOCABULARY = Vocabulary(words=("a", "b", "c"), tags=("x", "y"))


def test_export_holds_the_average_or_the_last_iterate(make_run, tmp_path) -> None:
    folder = make_run(rounds=10, checkpoints=True)
    assert export_run(folder, tmp_path / "out") == 10
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert set(tensors) == {"kernel", "bias"}
    assert tensors["kernel"][2, 0] == 3.0
    assert export_run(folder, tmp_path / "last", round_num=9, last_iterate=True) == 9
    assert "this is the last iterate after round 9" in (tmp_path / "last" / "README.md").read_text()
    assert load_file(tmp_path / "last" / "model.safetensors")["kernel"][2, 0] == pytest.approx(5.4)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "README.md",
        "model.safetensors",
        "vocabulary.json",
    ]


def test_the_card_states_the_epsilon_of_the_exported_round(make_run, tmp_path) -> None:
    folder = make_run(rounds=10, every=1, checkpoints=True, synthetic=True)
    export_run(folder, tmp_path / "out", round_num=9)
    card = (tmp_path / "out" / "README.md").read_text()
    value = spent(read_run(folder), 9).value
    assert value < spent(read_run(folder)).value
    assert f"| ε | {math.ceil(value * 100 - 1e-7) / 100:.2f} (δ = " in card
    assert "this is the aggregate after round 9" in card and "synthetic examples" in card
    assert "Synthetic data" in card and "## Privacy" in card
    assert "not covered by ε" in card and "CC BY-SA 3.0" in card


def test_a_card_without_noise_promises_nothing(make_run, tmp_path) -> None:
    export_run(make_run(noise_multiplier=None, checkpoints=True), tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| ε | ∞ (no noise was added" in card and "Not private" in card


def test_markdown_of_the_folder_stays_text(make_run, tmp_path) -> None:
    evil = "a\n\n# <script> [x](http://y) | `z`"
    export_run(make_run(name=evil, checkpoints=True), tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "<script>" not in card and "\n# <" not in card and not re.search(r"(?<!\\)\]\(", card)
    assert markdown_safe("a|b") == "a\\|b"


def test_a_failed_export_leaves_nothing(make_run, tmp_path) -> None:
    folder = make_run(checkpoints=True)
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("keep")
    with pytest.raises(ValueError):
        export_run(folder, full)
    assert [p.name for p in full.iterdir()] == ["mine.txt"]
    before = sorted(p.name for p in tmp_path.iterdir())
    with refuses(ValueError, 4):
        export_run(folder, tmp_path / "out", round_num=4)
    with pytest.raises(ValueError):
        export_run(folder, tmp_path / "out", vocabulary=VOCABULARY)
    (folder / "vocabulary.json").unlink()
    with refuses(ValueError, "vocabulary.json"):
        export_run(folder, tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == before


ALTERED = {
    "checkpoint": lambda run: add_one(run / "checkpoints" / "round-000010.safetensors"),
    "other checkpoint": lambda run: add_one(run / "checkpoints" / "round-000009.safetensors"),
    "ε of a round": lambda run: edit_rows(run / "rounds.jsonl", epsilon=0.01),
    "vocabulary": lambda run: (run / "vocabulary.json").write_text(
        (run / "vocabulary.json").read_text().replace("legal", "other")
    ),
    "summary": lambda run: (run / "summary.json").write_text('{"epsilon": 0.1}'),
}


def add_one(file):
    tensors, metadata = read_tensors(file)
    write_tensors(file, {name: array + 1 for name, array in tensors.items()}, metadata)


@pytest.mark.parametrize("alter", ALTERED.values(), ids=ALTERED)
def test_a_folder_that_does_not_verify_is_not_exported(make_run, tmp_path, alter) -> None:
    folder = make_run(rounds=10, checkpoints=True)
    alter(folder)
    with pytest.raises(ValueError):
        export_run(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_newest_model_is_the_one_that_was_released_last(make_run, tmp_path) -> None:
    """A run under way writes a checkpoint before it records that it is released."""
    folder = make_run(rounds=10, planned=11, checkpoints=True)
    with Ledger.open(folder / "ledger.jsonl") as ledger:
        ledger.charge(11, 1)
        metadata = {"ledger_head": ledger.head, "round_num": "11"}
    tensors, _ = read_tensors(folder / "checkpoints" / "round-000010.safetensors")
    write_tensors(folder / "checkpoints" / "round-000011.safetensors", tensors, metadata)
    assert export_run(folder, tmp_path / "out") == 10
    with pytest.raises(ValueError):
        export_run(folder, tmp_path / "later", round_num=11)


def test_a_planted_file_goes_into_no_export(make_run, tmp_path) -> None:
    folder = make_run(rounds=10, checkpoints=True)
    save_file({"more": np.ones(2, np.float32)}, folder / "frozen.safetensors")
    export_run(folder, tmp_path / "out")
    assert set(load_file(tmp_path / "out" / "model.safetensors")) == {"kernel", "bias"}


def test_ranking_is_softmax_regression_on_the_training_inputs() -> None:
    kernel = np.float32([[1, 0], [0, 2], [5, 5]])
    model = TagModel(kernel=kernel, bias=np.float32([0, 0.5]), vocabulary=VOCABULARY)
    # a a b and one unknown word: counts (2, 1, 0) over four tokens.
    ranked = model.rank(["a", "b", "zz", "a"])
    logits = np.array([2 / 4, 2 / 4 + 0.5])
    expected = np.exp(logits) / np.exp(logits).sum()
    assert [tag for tag, _ in ranked] == ["y", "x"]
    assert [share for _, share in ranked] == pytest.approx([expected[1], expected[0]])
    assert model.rank(["a"], top=1)[0][0] == "x"
    unit = TagModel(
        kernel=kernel,
        bias=np.float32([0, 0]),
        vocabulary=Vocabulary(words=("a", "b", "c"), tags=("x", "y"), inputs="unit-norm"),
    )
    logits = np.array([2, 2]) / math.sqrt(5)
    assert unit.rank(["a", "b", "zz", "a"])[0][1] == pytest.approx(0.5)
    assert unit.vocabulary.features(["a", "b", "zz", "a"])[1] == pytest.approx(
        np.array([2, 1]) / math.sqrt(5)
    )
    with pytest.raises(ValueError):
        model.rank(["a"], top=0)


def test_a_model_is_loaded_from_an_export_and_from_a_run(make_run, tmp_path) -> None:
    folder = make_run(checkpoints=True)
    export_run(folder, tmp_path / "out")
    tokens = ["visa"]
    assert load_model(folder).rank(tokens) == load_model(tmp_path / "out").rank(tokens)
    assert load_model(folder).rank(tokens)[0][0] == "legal"
    with pytest.raises(ValueError):
        load_model(tmp_path)


def test_what_is_not_a_model_of_the_vocabulary_is_refused(make_run, tmp_path) -> None:
    out = tmp_path / "out"
    export_run(make_run(checkpoints=True), out)
    good = load_file(out / "model.safetensors")
    for bad in (
        {"kernel": good["kernel"]},
        good | {"more": good["bias"]},
        good | {"kernel": good["kernel"].T.copy()},
    ):
        save_file(bad, out / "model.safetensors")
        with pytest.raises(ValueError):
            load_model(out)
    (out / "model.safetensors").write_bytes(pickle.dumps(good))
    with pytest.raises(ValueError):
        load_model(out)


def test_vocabulary_round_trip_and_refusals(tmp_path) -> None:
    path = tmp_path / "vocabulary.json"
    path.write_bytes(vocabulary_bytes(VOCABULARY))
    assert read_vocabulary(path) == VOCABULARY
    content = json.loads(path.read_text())
    for change in (
        {"version": 2},
        {"format": "other"},
        {"words": [1]},
        {"inputs": "cubed"},
        {"tags": None},
    ):
        path.write_text(json.dumps(content | change))
        with refuses(ValueError, 1):
            read_vocabulary(path)
    path.write_text("[]")
    with pytest.raises(ValueError):
        read_vocabulary(path)
