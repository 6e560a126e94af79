"""Going on with a run whose folder is our own: the code that it names is named again."""

import json
from pathlib import Path
from typing import Any

from fedpriv.runs import prepared


def own_code_of(folder: Path) -> str | None:
    """Return the code that a run folder names; None where it names none."""
    document = json.loads((folder / "experiment.json").read_text("utf-8"))
    name = document.get("reference")
    return name if name is not None and ":" in name else None


def resume_run(folder: Path, *, experiment: Any = None, **options: Any) -> prepared.PreparedRun:
    """Return the prepared run of a folder, as `fedpriv.runs.prepared.resume_run` does."""
    given = own_code_of(folder) if experiment is None else experiment
    return prepared.resume_run(folder, experiment=given, **options)
