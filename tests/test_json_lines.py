"""Lines of JSON: torn ones are left out and cut off, damage is named."""

from __future__ import annotations

import pytest

from fedpriv import json_lines


def test_a_torn_last_line_is_left_out(tmp_path) -> None:
    path = tmp_path / "rounds.jsonl"
    for content, expected in [
        (b'{"a":1}\n{"a":2}\n', 2),
        (b'{"a":1}\n{"a":2}', 1),
        (b'{"a":1}\n{"a":', 1),
        (b'{"a":1}\n{"a":\n', 1),
        (b'{"a":1}\n\xff\xfe\n', 1),
        (b"", 0),
        (b"{", 0),
    ]:
        path.write_bytes(content)
        rows = json_lines.read(path)
        assert len(rows) == expected, content
        # Cut off, it is left out no more, and what is written next is a line of its own.
        json_lines.cut_torn_line(path)
        assert json_lines.read(path) == rows
        assert content.startswith(path.read_bytes())
        json_lines.append(path, {"a": "né"})
        assert json_lines.read(path) == [*rows, {"a": "né"}]
    assert json_lines.read(tmp_path / "absent.jsonl") == []


@pytest.mark.parametrize("bad", [b"{", b"[1]", b"3", b"", b"\xff"])
def test_damage_before_the_last_line_is_named(tmp_path, bad: bytes) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_bytes(b'{"a":1}\n' + bad + b'\n{"a":3}\n')
    with pytest.raises(ValueError, match=r"rounds\.jsonl, line 2 is not a JSON object"):
        json_lines.read(path)


def test_what_is_written_is_one_line_whatever_is_in_it(tmp_path) -> None:
    path = tmp_path / "rounds.jsonl"
    rows = [{"text": "a\nb\u2028c\r"}, {"number": 0.1, "none": None, "inner": {"list": [1, 2]}}]
    for row in rows:
        json_lines.append(path, row)
    assert json_lines.read(path) == rows
    json_lines.cut_torn_line(path)
    assert json_lines.read(path) == rows
    json_lines.cut_torn_line(tmp_path / "absent.jsonl")
    assert not (tmp_path / "absent.jsonl").exists()


def test_the_last_line_is_replaced_and_nothing_else(tmp_path) -> None:
    path = tmp_path / "rounds.jsonl"
    with pytest.raises(ValueError, match="no line to replace"):
        json_lines.replace_last(path, {"a": 1})
    for before in (b"", b'{"a": 1,  "kept": "as it stands"}\n'):
        for torn in (b"", b'{"a":'):
            path.write_bytes(before + b'{"a": 2}\n' + torn)
            json_lines.replace_last(path, {"a": "n\u00e9"})
            assert path.read_bytes() == before + '{"a": "n\u00e9"}\n'.encode()
    assert [found.name for found in tmp_path.iterdir()] == ["rounds.jsonl"]
