"""`fedpriv.flower`: the parts of fedpriv for a custom ServerApp and ClientApp.

Loading it loads Flower, and none of the run loop, which nodes do not need.
"""

from flwr.serverapp import ServerApp

from fedpriv.backends.flower.client import bounded
from fedpriv.backends.flower.settings import client_app
from fedpriv.backends.flower.strategy import GridSettings, UserLevelStrategy

__all__ = ["GridSettings", "UserLevelStrategy", "bounded", "client_app", "server_app"]


def server_app() -> ServerApp:
    """Return the ready ServerApp: it runs the experiment that the run-config names.

    The run-config has `experiment`, `out` or `resume`, and options; `fedpriv new` writes a project
    that declares them. It is the loop of `fedpriv run`: same run folder, ledger and report.
    """
    from fedpriv.api.flower_server import make_server_app

    return make_server_app()
