"""The synthetic run folders of the report's tests: commands read them too."""

from tests.report.conftest import make_run

__all__ = ["make_run"]
