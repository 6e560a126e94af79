"""The scoreboard's rows name tests that are there."""

import re

import pytest

from tests.trust.rows import ROWS
from tests.trust.scoreboard import TESTS

PATHS = sorted(
    {
        path
        for row in ROWS
        for path in (*row.tests, *row.long, *(test for twin in row.twins for test in twin.tests))
    }
)


@pytest.mark.parametrize("path", PATHS)
def test_a_row_names_a_test_that_is_there(path):
    """Red when a folder of tests moved and its rows did not follow."""
    file, _, name = path.partition("::")
    assert (TESTS / file).exists()
    if name:
        text = (TESTS / file).read_text("utf-8")
        assert re.search(rf"(?:def|class) {name.rpartition('::')[2]}\b", text)
