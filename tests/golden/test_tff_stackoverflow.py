"""TFF 0.87's own preprocessing of its own sample file, value for value."""

import numpy as np
import pytest

from fedpriv.datasets.tff_files import open_client_data
from tests.golden.tff_tags import tag_prediction_arrays


@pytest.mark.data
def test_tag_prediction_equals_tff(shared_data):
    golden = np.load(shared_data / "tff" / "stackoverflow_synthetic_golden.npz")
    with open_client_data(shared_data / "tff" / "stackoverflow_synthetic.sqlite") as data:
        assert data.client_ids == ("synthetic_1", "synthetic_2", "synthetic_3")
        for client_id in data.client_ids:
            x, y = tag_prediction_arrays(data.examples(client_id), golden["words"], golden["tags"])
            assert x.dtype == y.dtype == np.float32
            assert np.array_equal(x, golden[f"{client_id}_x"])
            assert np.array_equal(y, golden[f"{client_id}_y"])


def test_tag_prediction_equals_tff_on_a_committed_row():
    # The second example of the sample's first client, for machines without the file.
    example = {
        "tokens": "css3 does finally define the",
        "title": "creating rounded corners using css",
        "tags": "css|cross-browser|rounded-corners|css3",
    }
    words = ["the", "css3", "does", "define", "finally", "."]
    x, y = tag_prediction_arrays([example], words, ["android", "cross-browser", "css", "css3"])
    assert np.array_equal(x[0], np.array([0.2] * 5 + [0], np.float32))
    assert y[0].tolist() == [0, 1, 1, 1]
