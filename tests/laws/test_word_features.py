"""Weighted words and pairs have nothing of a rostered user in them."""

import numpy as np
import pytest

from fedpriv.tasks.tag_prediction import TagPrediction
from tests.laws.test_roster_independence import small_corpus, without, write


@pytest.mark.parametrize("seed", range(2))
def test_deleting_a_rostered_user_moves_no_weight(tmp_path, seed):
    sentences = small_corpus(seed)
    users = sorted({sentence.user_id for sentence in sentences})
    roster = [user for user in users if int(user[1:]) % 3]

    def files(folder, deleted):
        view = write(tmp_path / folder, without(sentences, deleted), roster).view()
        return TagPrediction(view, inputs="tf-idf", pairs=9).files()

    whole = files("whole", None)
    for deleted in np.random.default_rng(seed).choice(roster, 2, replace=False):
        assert files(str(deleted), str(deleted)) == whole
    outside = next(user for user in users if user not in roster)
    assert files("outside", outside) != whole  # the law could fail
