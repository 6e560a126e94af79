"""The synthetic tables, under a name that tests import."""

import importlib.util
import sys
from pathlib import Path

_spec = importlib.util.spec_from_file_location(
    "tiny_tables", Path(__file__).with_name("tiny_tables.py")
)
assert _spec is not None and _spec.loader is not None
sys.modules["tiny_tables"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sys.modules["tiny_tables"])
