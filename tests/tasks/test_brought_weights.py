"""Weights that a module brings are named in what ε does not cover, and asked for in secure mode."""

import pytest
import torch
from torch import nn

from fedpriv.privacy.statement.coverage import coverage_of
from fedpriv.privacy.statement.statement import run_statement
from fedpriv.tasks.central import by_example
from fedpriv.tasks.dataset_tasks import module_task
from tests.harness.toys_of_training import data_set
from tests.tasks.people import accepted, person, refused, started, task

LOADED = torch.arange(8.0).reshape(2, 4).sin()  # as a file would have it


def loading():
    made = nn.Linear(4, 2)
    made.weight.data.copy_(LOADED)
    return made


def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return nn.Linear(4, 2)


class Positions(nn.Module):
    """A table of sines that no parameter is."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.register_buffer("table", torch.arange(4.0).sin())

    def forward(self, x):
        return self.head(x + self.get_buffer("table"))


def frozen():
    made = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    made[0].requires_grad_(False).weight.data.copy_(LOADED.repeat(2, 1))
    return made


class Patterns(nn.Sequential):
    """What is drawn, and what needs no more than a number or two to say."""

    def __init__(self):
        super().__init__(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
        nn.init.eye_(self[0].weight)
        nn.init.constant_(self[0].bias, 0.5)
        nn.init.zeros_(self[2].weight)
        self.register_buffer("places", torch.arange(4), persistent=False)

    def forward(self, x):
        return super().forward(x + self.get_buffer("places"))


def columns():
    """Nine tenths of a layer are loaded."""
    made = nn.Sequential(nn.Linear(4, 40), nn.Linear(40, 2))
    made[0].weight.data[:36] = torch.arange(144.0).reshape(36, 4).sin()
    return made


BROUGHT = {
    "in part": (columns, {"0.weight"}),
    "trained": (loading, {"weight"}),
    "of a fixed seed": (seeded, {"weight"}),
    "a table": (Positions, {"table"}),
    "frozen": (frozen, {"0.weight"}),
}


@pytest.mark.parametrize(("module", "names"), BROUGHT.values(), ids=BROUGHT)
def test_they_are_named_in_a_simulation_and_asked_for_in_secure_mode(tmp_path, module, names):
    made = task(module=module)
    assert set(made.brought()) == names
    prepared = started(tmp_path / "run", made)
    summary = prepared.run()
    [phrase] = coverage_of(prepared.folder.document).not_covered
    assert all(name in phrase for name in names)
    assert summary["epsilon_does_not_cover"] == [phrase]
    assert phrase in run_statement(tmp_path / "run").not_covered
    named = sorted(names)[0], "start-brought-weights"
    refused(tmp_path / "secure", made, ValueError, *named, secure=True)


def test_a_secure_run_that_asks_for_them_says_so(tmp_path):
    options = {"secure": True, "start_brought_weights": True}
    prepared = accepted(tmp_path / "run", task(module=loading), **options)
    assert any("(weight)" in one for one in coverage_of(prepared.folder.document).not_covered)


@pytest.mark.parametrize("secure", [False, True])
def test_what_is_drawn_or_a_pattern_is_not(tmp_path, secure):
    for number, module in enumerate((Patterns, lambda: nn.Linear(4, 2))):
        prepared = accepted(tmp_path / str(number), task(module=module), secure=secure)
        assert prepared.begun.facts == {"kind": "fresh"}
        assert coverage_of(prepared.folder.document).not_covered == ()


def test_weights_of_published_files_have_a_sentence_of_their_own(tmp_path):
    made = task(module=frozen, published={"encoder": "ab" * 32})
    prepared = accepted(tmp_path / "run", made, secure=True)
    assert made.brought() == () and prepared.folder.document["corpus"]["published"]


def test_rows_that_are_loaded_below_drawn_ones():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(6, 40, padding_idx=0)
            self.words.weight.data[1:4] = torch.arange(120.0).reshape(3, 40).sin()

        def forward(self, x):
            return self.words(x.long().clamp(0, 5)).mean(1)

    assert set(task(module=Words, loss=lambda out, y: out.square().mean()).brought()) == {
        "words.weight"
    }


def test_a_file_replaces_what_is_trained(tmp_path):
    started(tmp_path / "first", task()).run()
    file = max((tmp_path / "first" / "checkpoints").glob("*.safetensors"))
    made = task(module=loading)
    prepared = accepted(tmp_path / "run", made, start="file", start_file=str(file))
    assert "brought" not in prepared.begun.facts


def test_single_examples_and_centralised_tasks_likewise():
    assert set(by_example(task(module=loading), 2).brought()) == {"weight"}
    x, y = person(0)
    data = data_set(x, y)
    for module, names in ((loading, {"weight"}), (Positions, {"table"})):
        made = module_task(data, module, nn.functional.cross_entropy)
        assert set(made.brought()) == names
