"""Reviews that are tokenised once."""

import pytest

from simulations.reviews.features import load_imdb


@pytest.fixture(scope="session")
def imdb(shared_data, tmp_path_factory):
    """The IMDB reviews, tokenised once into a cache of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDPRIV_CACHE", str(tmp_path_factory.mktemp("imdb-cache")))
        return load_imdb(shared_data / "imdb")
