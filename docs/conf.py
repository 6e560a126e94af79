"""Configuration of the site, which `make docs` builds with Sphinx."""

from __future__ import annotations

import hashlib
import logging
import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))

from docs.write_options import write_generated  # noqa: E402
from fedpriv import __version__  # noqa: E402

project = "fedpriv"
copyright = "the fedpriv authors, Apache-2.0"
version = release = __version__
html_title = f"fedpriv {__version__}"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_search_scorer = str(DOCS / "static" / "scorer.js")
html_copy_source = False
html_show_sphinx = False

# Anchors of headings are those that GitHub makes, so that links work in both.
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]

# A notebook is executed again where it, or the package, has changed.
for _noisy in ("alembic", "traitlets"):
    logging.getLogger(_noisy).setLevel(logging.ERROR)
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_execution_timeout = 600
nb_execution_show_tb = True
_SOURCES = sorted((DOCS.parent / "fedpriv").rglob("*.py"))
_DIGEST = hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES)).hexdigest()[:16]
nb_execution_cache_path = str(DOCS.parent / "build" / "notebooks" / _DIGEST)

autodoc_typehints = "none"  # the signature has them
autodoc_member_order = "bysource"
napoleon_use_rtype = False
default_role = "code"


def _outside(_app: Any, page: str, text: list[str]) -> None:
    """Have links to tables and projects beside `docs/` lead to the pages that include them."""
    here = "../" * page.count("/")
    for folder, target in (
        (r"benchmarks/results/([\w-]+)\.md", "speed.md#"),
        (r"examples/([\w-]+)[^)]*", "examples.md#example-"),
    ):
        text[0] = re.sub(
            rf"\]\((?:\.\./)+{folder}\)",
            lambda found, target=target: f"]({here}{target}{found[1].replace('_', '-')})",
            text[0],
        )


def setup(app: Any) -> None:
    """Write the generated pages, and register what changes pages as they are read."""
    write_generated()
    app.connect("source-read", _outside)
