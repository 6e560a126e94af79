"""Lines of JSON: torn ones are left out and cut off, damage is named."""

from __future__ import annotations

import json

import pytest

from fedpriv import json_lines
from tests.harness.refusals import refuses


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
    with refuses(ValueError, 2):
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
    for use in (json_lines.read_last, lambda path: json_lines.replace_last(path, {"a": 1})):
        with pytest.raises(ValueError):
            use(path)
    for before in (b"", b'{"a": 1,  "kept": "as it stands"}\n'):
        for torn in (b"", b'{"a":'):
            path.write_bytes(before + b'{"a": 2}\n' + torn)
            json_lines.replace_last(path, {"a": "n\u00e9"})
            assert path.read_bytes() == before + '{"a": "n\u00e9"}\n'.encode()
    assert [found.name for found in tmp_path.iterdir()] == ["rounds.jsonl"]


def test_the_last_line_of_a_long_file_is_found_from_its_end(tmp_path, monkeypatch) -> None:
    path = tmp_path / "rounds.jsonl"
    rows = [{"round_num": number, "text": "x" * (number % 300)} for number in range(3000)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    monkeypatch.setattr(type(path), "read_bytes", lambda self: pytest.fail("the whole file"))
    assert json_lines.read_last(path) == rows[-1]
    for new in ({"a": 1}, {"a": "y" * 200_000}, {"a": 2}, {"b": 3}):
        json_lines.replace_last(path, new)
        assert json_lines.read_last(path) == new
    monkeypatch.undo()
    assert json_lines.read(path) == [*rows[:-1], {"b": 3}]


@pytest.mark.parametrize("bad", ['{"a": 1, "a": 2}', '{"b": {"a": 1, "a": 2}}', "[" * 100_000])
def test_what_readers_could_take_for_two_things_is_no_object(tmp_path, bad) -> None:
    with pytest.raises(ValueError):
        json_lines.parse_object(bad)
    path = tmp_path / "rounds.jsonl"
    path.write_text(bad + '\n{"a": 1}\n')
    with refuses(ValueError, 1):
        json_lines.read(path)


def test_a_new_file_has_the_mode_that_is_asked_for(tmp_path) -> None:
    path = tmp_path / "diagnostics.jsonl"
    json_lines.append(path, {"a": 1}, mode=0o600)
    json_lines.replace_last(path, {"a": 2})
    assert path.stat().st_mode & 0o777 == 0o600
