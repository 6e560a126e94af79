"""Tag prediction: whom it measures."""

import numpy as np
import pytest

from fedpriv.datasets.stackexchange.splits import BY_SENTENCE, BY_THREAD
from fedpriv.tasks.tag_prediction import TagPrediction, evaluate_tags
from tests.harness.toys_of_training import KEY, drawn


@pytest.mark.parametrize("split", [BY_THREAD, BY_SENTENCE], ids=lambda split: split.name)
def test_what_is_released_is_measured_on_public_users_alone(tiny_corpus, split):
    """By thread where a public user asked, by sentence on all they wrote; red of anybody else."""
    view = tiny_corpus.view(split=split)
    task = TagPrediction(view)
    params = drawn(task.init_params(KEY))
    rows = {
        True: view.public_rows("test")
        if split == BY_THREAD
        else np.concatenate(list(view.rows(view.public_users, "all"))),
        False: np.concatenate(list(view.rows(view.roster, "test"))),
    }
    for public, of in rows.items():
        found = task.evaluate(params, public=public)
        expected = evaluate_tags(params, view.columns, "tff", of)
        assert found.num_examples == len(of) > 0
        for name in ("accuracy", "recall_at_5", "loss"):
            assert found.get(name) == pytest.approx(expected.get(name), rel=1e-12)
    assert not np.intersect1d(rows[True], rows[False]).size
