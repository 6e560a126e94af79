"""Tags by adapters on an encoder: without them the frozen encoder's model, on the same texts."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch

import fedpriv as fp
from fedpriv.experiments.build import build
from fedpriv.rng import Key
from fedpriv.tasks.pretrained import PretrainedClassifier
from fedpriv.training.local.module import ArrayExamples
from simulations.evaluation.held_out import held_rows
from simulations.threads import adapters
from simulations.threads.adapters import Texts, adapter_tags
from tests.simulations.threads.short import shortened

if find_spec("transformers") is None:
    pytest.skip("the extra `pretrained` is not installed", allow_module_level=True)


def made(encoder, corpus, **options):
    given = {"encoder": encoder.id, "rounds": 2, "cohort": 10.0, "rank": 2, **options}
    return build(adapter_tags().with_options(given), corpus)


@pytest.mark.slow
def test_adapters_begin_as_the_head_on_the_frozen_encoders_rows(tiny_corpus, encoder):
    """Red if a user's texts are another's."""
    task = made(encoder, tiny_corpus).task
    params = task.init_params(Key.simulation(0))
    view = tiny_corpus.view()
    module = task._make().eval()
    for user in view.roster[:6]:
        columns, own = view.examples(user), task.data.examples(user)
        assert len(own) == len(columns)
        np.testing.assert_array_equal(own.y, columns.labels)
        rows = task._norm * task._rows.dense(columns)
        head = torch.nn.functional.linear(
            torch.from_numpy(rows), module.head.weight, module.head.bias
        )
        with torch.no_grad():
            torch.testing.assert_close(module(torch.from_numpy(own.x)), head, rtol=1e-3, atol=1e-4)
    assert len(task.data.examples("u59")) == 0
    assert {n for n in params if "lora" not in n} == {"head.weight", "head.bias"}


@pytest.mark.slow
def test_memory_is_counted_of_a_title_as_long_as_most(tiny_corpus, encoder):
    """Red if the shortest title, of which the least is kept, comes first."""
    view, model = tiny_corpus.view(), PretrainedClassifier(files=encoder, num_classes=10, rank=2)

    def lengthened(titles, labels):
        said = [" ".join([title] * (n % 5 + 1)) for n, title in enumerate(titles)]
        return ArrayExamples(model.inputs(said), labels.astype(np.int64))

    texts = Texts(tiny_corpus, view, "title", lengthened)
    found = texts.some(view.public_rows("test"), 20)
    lengths = (found.x >= 0).sum(axis=1)
    assert lengths.min() < lengths[0] == np.sort(lengths)[len(lengths) // 2] < lengths.max()
    assert (np.diff(lengths[1:]) >= 0).all() and texts.some(np.arange(0), 20) is None


@pytest.mark.slow
@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_run_starts_from_the_public_head_and_trains_both(tiny_corpus, encoder, tmp_path, device):
    run = fp.run(
        made(encoder, tiny_corpus).experiment, corpus=tiny_corpus.directory, device=device,
        out=tmp_path / "run",
    )  # fmt: skip
    found = made(encoder, tiny_corpus).begin(Key.simulation(run.options["seed"])).params
    assert any(t.any() for n, t in run.params.items() if "lora_b" in n)
    assert not any(t.any() for n, t in found.items() if "lora_b" in n)
    assert np.abs(found["head.weight"]).max() > 0.1
    assert encoder.sha256 in str(run.statement) and run.summary["accuracy_public"] > 0


@pytest.mark.slow
def test_the_study_measures_adapters_beside_the_head_alone(
    tiny_corpus, encoder, tmp_path, monkeypatch, capsys
):
    """Red if a thread's logits go to another's sentences: rank 0 without a round is the head."""
    small = {**adapters._SMALL, "cohort": 10.0, "rounds": 1}
    monkeypatch.setattr(adapters, "MINILM", encoder.id)
    monkeypatch.setattr(adapters, "_SMALL", small)
    monkeypatch.setattr(
        adapters, "adapter_tags", lambda: adapter_tags().with_options(
            {"encoder": encoder.id, "rounds": 1, "cohort": 10.0, "rank": 2}
        )
    )  # fmt: skip
    monkeypatch.setattr(adapters, "ENCODED", shortened(adapters.ENCODED, rounds=2, cohort=5.0))
    page = tmp_path / "page.md"
    adapters.reproduce(corpus=str(tiny_corpus.directory), roster=None, out=page)
    text = capsys.readouterr().out
    assert "adapters, ε = 2" in text and "Synthetic data" in text and page.exists()
    task = made(encoder, tiny_corpus).task
    params = task.init_params(Key.simulation(0))
    rows = held_rows(tiny_corpus.view())
    columns = tiny_corpus.view().columns.take(rows)
    logits = torch.from_numpy(task._norm * task._rows.dense(columns))
    logits = logits @ torch.from_numpy(params["head.weight"]).T
    right = (logits.argmax(1).numpy() == columns.labels).mean()
    assert task.outcomes(params).right.mean() == pytest.approx(right, abs=0.01)
