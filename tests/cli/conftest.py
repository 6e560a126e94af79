"""The synthetic run folders of the report's tests, and a place without data: commands use both."""

from tests.datasets.conftest import no_data, server
from tests.report.conftest import make_run

__all__ = ["make_run", "no_data", "server"]
