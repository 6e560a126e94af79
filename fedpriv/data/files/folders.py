"""Where data lie on this machine: the folder that is named, and one next to the checkout."""

from __future__ import annotations

import os
from pathlib import Path


def data_folders() -> tuple[Path, ...]:
    """Return the data folders there are: `FEDPRIV_DATA`, `../shared/data` next to the checkout."""
    checkout = Path(__file__).resolve().parents[3]
    parents = [checkout.parent] if (checkout / "pyproject.toml").is_file() else []
    given = os.environ.get("FEDPRIV_DATA")
    folders = [Path(given).expanduser()] if given else []
    folders += [p / "shared" / "data" for p in (*parents, Path.cwd().resolve().parent)]
    return tuple(dict.fromkeys(folder for folder in folders if folder.is_dir()))
