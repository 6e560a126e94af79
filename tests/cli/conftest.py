"""The synthetic run folders of the report's tests: commands read them too."""

import importlib.util
from pathlib import Path

_SPEC = importlib.util.spec_from_file_location(
    "run_folders", Path(__file__).parents[1] / "report" / "conftest.py"
)
_MODULE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)
make_run = _MODULE.make_run
