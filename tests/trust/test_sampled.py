"""Changes of the sample are code of functions, compile, and differ."""

import ast

import pytest

from tests.trust import sampled

SOURCE = '''\
"""Text."""
LIMIT = 3


def bounded(value: int, most: float = 2.0) -> int:
    """Text."""
    if not value < most and value != 1:
        raise ValueError(f"{value + 1} is too large")
    print(value)
    return -value * 2
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    path = tmp_path / "fedpriv" / "one.py"
    path.parent.mkdir()
    path.write_text(SOURCE, "utf-8")
    monkeypatch.setattr(sampled, "ROOT", tmp_path)
    return path


def test_each_change_is_one_of_code(module):
    found = list(sampled.changes(module, raises=False))
    texts = {sampled.changed(change).decode() for change in found}
    assert len(texts) == len(found) and SOURCE not in texts
    for text in texts:
        ast.parse(text)
        assert text.startswith('"""Text."""\nLIMIT = 3\n')
        assert "is too large" in text and "{value + 1}" in text
    assert {change.text for change in found} >= {
        "(value <= most)", "(value == 1)", "pass", "return None", "(value)", "(3)", "(4.5)",
    }  # fmt: skip


def test_each_refusal_is_deleted(module):
    (found,) = sampled.changes(module, raises=True)
    assert "        pass\n    print" in sampled.changed(found).decode()


def test_a_sample_is_of_its_seed():
    assert sampled.sample(raises=True) == sampled.sample(raises=True)
    assert len(sampled.sample(raises=True)) == sampled.RAISES


def test_a_context_is_a_test():
    found = sampled.node_id("tests.trust.test_sampled.test_a_context_is_a_test")
    assert found == "tests/trust/test_sampled.py::test_a_context_is_a_test"
    assert sampled.node_id("tests.conftest.tiny_corpus") is None
