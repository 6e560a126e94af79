"""The comparison of benchmarks goes on without a peer that died; contestants here are fakes."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

FAKE = """
import sys
sys.path.insert(0, {folder!r})
from protocol import Gate
gate, done, last = Gate(), 0, {last}
gate.ready(fake="1")
while gate.passes():
    done += 1
    if done == last:
        print("\\x1b[31mRuntimeError: out of | luck\\x1b[0m", file=sys.stderr)
        raise SystemExit(1)
"""


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import compare

    yield compare
    for name in set(sys.modules) - before:
        if BENCHMARKS in Path(getattr(sys.modules[name], "__file__", None) or "").parents:
            del sys.modules[name]


def fakes(compare: ModuleType, **last_rounds: int) -> list:
    """Return contestants by tool, each of which dies in its round of that number; 0 never."""
    return [
        compare.Contestant(
            name=f"fake {tool}",
            tool=tool,
            command=["-c", FAKE.format(folder=str(BENCHMARKS / "jobs"), last=last)],
        )
        for tool, last in last_rounds.items()
    ]


def measured(compare: ModuleType, people: list, logs: Path) -> list:
    # One first round, one to warm up, then blocks of 2: round 5 is in block 2.
    return compare.measure(people, blocks=3, block_seconds=0.0, warm_up=1, logs=logs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("last", "said", "blocks"),
    [(1, "in its first round", 0), (2, "in its warm-up", 0), (5, "in block 2", 1)],
)
def test_a_peer_that_dies_keeps_its_row_and_stops_nobody(
    compare: ModuleType, tmp_path: Path, last: int, said: str, blocks: int
) -> None:
    people = fakes(compare, fedpriv=0, flower=last, pfl=0)
    entries = measured(compare, people, tmp_path)
    own, dead, other = entries
    assert dead.note == f"died {said}: RuntimeError: out of | luck"
    assert [len(entry.blocks) for entry in entries] == [3, blocks, 3]
    assert own.counts and other.counts and not dead.counts
    text = compare.figures.markdown("title", entries, 20, [])
    row = next(line for line in text.splitlines() if line.startswith("| fake flower"))
    assert row == rf"| fake flower | died {said}: RuntimeError: out of \| luck | | | | | | | |"
    assert "fedpriv against fake pfl" in text and "against fake flower" not in text


@pytest.mark.slow
def test_fedprivs_own_death_ends_the_comparison(compare: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(compare.WorkerError):
        measured(compare, fakes(compare, fedpriv=5, pfl=0), tmp_path)
