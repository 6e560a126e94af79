"""Names for runs that are compared: the experiment's, and what tells it from its like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedpriv.report.series import RunRecord
from fedpriv.report.tables import exact

# Of two options that tell runs apart equally well, the one that a reader looks for first.
_FIRST = (
    "noise.target_epsilon", "method", "start", "precondition", "noise", "bound", "sampling",
    "noise.multiplier",
)  # fmt: skip
_LEFT_OUT = ("seed", "name", "description")
_MOST = 4
_MODE = "mode"


def labels_of_runs(runs: Sequence[RunRecord], *, without: Sequence[str] = ()) -> list[str]:
    """Return a name for each run, no two alike: its label or experiment where that is enough.

    Else the options in which those of one name differ are added, as few as tell them apart: first
    those that all of them have, for an option that some lack follows from another; then backend,
    corpus and version; and of runs that differ in nothing, the folder.

    Args:
        runs: The runs.
        without: Options that are not named.
    """
    by_name: dict[str, list[int]] = {}
    for place, run in enumerate(runs):
        by_name.setdefault(run.label, []).append(place)
    labels = [run.label for run in runs]
    for name, places in by_name.items():
        if len(places) > 1:
            texts = _distinguished([runs[place] for place in places], without)
            for place, text in zip(places, texts, strict=True):
                labels[place] = f"{name} · {text}"
    return labels


def _distinguished(runs: Sequence[RunRecord], without: Sequence[str]) -> list[str]:
    facts = [_facts(run, without) for run in runs]
    names = list(dict.fromkeys(name for found in facts for name in found))

    def rank(name: str) -> tuple[int, int]:
        if not any(name in run.given_options for run in runs):
            return 2, 0
        lacking = any(run.given_options.get(name) is None for run in runs)
        return int(lacking), _FIRST.index(name) if name in _FIRST else len(_FIRST)

    names.sort(key=rank)
    columns = {name: [found.get(name) for found in facts] for name in names}
    # An ε that is simulated is another thing than one that is not: that is always said.
    chosen = [_MODE] if len(set(columns[_MODE])) > 1 else []

    def kinds(also: str | None = None) -> int:
        taken = [*chosen, *([] if also is None else [also])]
        return len(set(zip(*(columns[name] for name in taken), strict=True))) if taken else 1

    for group in (0, 1, 2):  # an option that some lack only tells apart those that have it
        among = [name for name in names if rank(name)[0] == group]
        while kinds() < len(runs) and len(chosen) < _MOST:
            best = max(among, key=kinds, default=None)
            if best is None or kinds(best) == kinds():
                break
            chosen.append(best)
    named = [name for name in names if name in chosen]
    texts = [
        ", ".join(f"{name} {values[name]}" for name in named if name in values)
        or ", ".join(f"{name} none" for name in named)
        for values in facts
    ]
    return [
        text if texts.count(text) == 1 else ", ".join(filter(None, (text, _folder(runs, place))))
        for place, text in enumerate(texts)
    ]


def _folder(runs: Sequence[RunRecord], place: int) -> str:
    """Return a run's folder: its name, or its whole path where another one has that name."""
    names = [run.directory.resolve().name for run in runs]
    return names[place] if names.count(names[place]) == 1 else str(runs[place].directory)


def _facts(run: RunRecord, without: Sequence[str]) -> Mapping[str, str]:
    """Return what can tell a run from another: options first."""
    options = {
        name: exact(value)
        for name, value in run.given_options.items()
        if value is not None and name not in _LEFT_OUT and name not in without
    }
    corpus, versions = run.corpus, run.description.get("versions")
    made = " (synthetic)" if run.synthetic else ""
    return options | {
        "backend": str(run.description.get("backend")),
        _MODE: "simulated" if run.simulated else "secure",
        "on": f"{corpus.get('name') or 'own data'}{made}",
        "roster": str(corpus.get("roster")),
        "users": str(corpus.get("num_users")),
        "fedpriv": str(versions.get("fedpriv")) if isinstance(versions, dict) else "",
    }
