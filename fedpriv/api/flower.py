"""`fedpriv.flower`: the parts of fedpriv for a custom ServerApp and ClientApp.

Loading it loads Flower, and none of the run loop, which nodes do not need.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result, Strategy

from fedpriv import json_lines
from fedpriv.backends.flower.client import UserLevelClientApp, bounded
from fedpriv.backends.flower.log import ended_in_one_line, show_log
from fedpriv.backends.flower.messages import reason_of
from fedpriv.backends.flower.settings import client_app, read_out
from fedpriv.backends.flower.strategy import GridBackend, GridSettings, connect
from fedpriv.checkpoints.aggregates import Aggregate, Last
from fedpriv.optimizers import Sgd
from fedpriv.privacy.plan import Plan, plan_digest
from fedpriv.transform import Transform
from fedpriv.tree import Params

if TYPE_CHECKING:
    from fedpriv.api.result import Run

__all__ = [
    "GridSettings",
    "UserLevelClientApp",
    "UserLevelResult",
    "UserLevelStrategy",
    "bounded",
    "client_app",
    "connect",
    "server_app",
]
_LOG = logging.getLogger("fedpriv.server")
_WEIGHT = "num-examples"


def server_app() -> ServerApp:
    """Return the ready ServerApp: it runs the experiment that the run-config names.

    The run-config has `experiment`, `out` or `resume`, and options; `fedpriv new` writes a project
    that declares them. It is the loop of `fedpriv run`: same run folder, ledger and report.
    """
    from fedpriv.api.flower_server import make_server_app

    return make_server_app()


@dataclass(repr=False)
class UserLevelResult(Result):
    """Flower's `Result`, with what was spent; printed: ε, run folder, and metrics if there are any.

    Attributes:
        arrays: Released.
        train_metrics_clientapp: Always empty: no noise covers what nodes measure as they train.
        evaluate_metrics_clientapp: Diagnostics of a simulation, by round.
        evaluate_metrics_serverapp: What `evaluate_fn` returned, by round.
        run: The run, with ε, δ, relation, unit and accountant.
    """

    run: Run | None = None

    def __repr__(self) -> str:
        metrics = {
            "diagnostics of nodes, not covered by ε": self.evaluate_metrics_clientapp,
            "evaluate_fn": self.evaluate_metrics_serverapp,
        }
        found = (
            f"{name}: { {number: dict(record) for number, record in of_rounds.items()} }"
            for name, of_rounds in metrics.items()
            if of_rounds
        )
        return "\n".join([repr(self.run), *found])


class UserLevelStrategy(Strategy):
    """A Flower `Strategy` with user-level differential privacy, charged in a ledger.

    It replaces `FedAvg`, and has Flower's `start`. On the nodes is a `UserLevelClientApp`, or a
    `ClientApp` with a `bounded` function.

    Guarantees:
        * A round is charged, and the charge synced where there is a folder, before its cohort is
          drawn and any message is sent. A lost attempt stays spent.
        * An attempt's answers are added once each, unweighted, and bounded again; metrics that
          nodes send are dropped. Noise is added to the sum once, and the denominator is the plan's.
        * A number of rounds other than the plan's, a class derived from this one, a strategy that
          wraps it, and a folder without its ledger are refused.

    Args:
        plan: The guarantee, such as `fedpriv.Rounds(...).plan(...)`.
        roster: The frozen ids of the users, one for each person.
        out: The run folder, an absolute path outside the app's folder. One that holds a run of this
            plan is continued after a crash. Without it the run is in a temporary folder, gone with
            the result or the process.
        secure: Entropy from the operating system instead of a seed; needs `out`.
        seed: Of a simulation.
        anchor: As of `fedpriv.averaging`.
        settings: Deadlines, and which nodes are believed; None for their defaults.
        optimizer: As of `fedpriv.averaging`.
        aggregate: Likewise.
        diagnostics: Whether nodes evaluate each round's model, in a simulation: exact means of
            their metrics, weighted by `num-examples`, in `evaluate_metrics_clientapp` and, with
            ``nodes_`` before their names, in the folder's `diagnostics.jsonl`. No ε covers them,
            so a secure run refuses it.

    Raises:
        ValueError: If diagnostics are asked of a secure run, or it is not kept; if the folder is
            relative or in a Flower app.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        roster: Sequence[str],
        out: str | Path | None = None,
        secure: bool = False,
        seed: int = 0,
        anchor: str | Path | None = None,
        settings: GridSettings | None = None,
        optimizer: Transform = Sgd(),
        aggregate: Aggregate = Last(),
        diagnostics: bool = False,
    ) -> None:
        if diagnostics and secure:
            raise ValueError(
                "diagnostics=True in a secure run: exact metrics of users would leave their nodes, "
                "covered by no ε; evaluate on public data, with evaluate_fn"
            )
        self.plan, self.roster, self.diagnostics = plan, tuple(roster), diagnostics
        self.settings = GridSettings() if settings is None else settings
        #: Of a simulation: over all rounds, how many answers were dropped, by reason.
        self.counts: Counter[str] = Counter()
        out = None if out is None else read_out({"out": str(out)})
        self._kept: dict[str, Any] = {"out": out, "secure": secure, "seed": seed, "anchor": anchor}
        self._made: dict[str, Any] = {"optimizer": optimizer, "aggregate": aggregate}

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> UserLevelResult:
        """Train to the end of the plan, and return what was released.

        The log has the plan and its ε, the run folder, and a line a round. A mistake ends Flower's
        own processes with a line, too.

        Args:
            grid: Flower's.
            initial_arrays: Params before the first round, float32, made without looking at a user.
            num_rounds: The plan's, said once more.
            timeout: Seconds after which a round goes on without those who have not answered, where
                that is sooner than the settings' deadline.
            train_config: Public values for the training function, which is given them as `config`.
            evaluate_config: Of diagnostics.
            evaluate_fn: From a round's number and params to metrics on public data. Round 0 is the
                start; of a run that goes on after a crash the rounds from there on are measured.

        Raises:
            ValueError: For another number of rounds, arrays that are not float32, or what
                `fedpriv.averaging` and `connect` refuse, such as ids that are no strings.
        """
        from fedpriv.api.averaging import averaging
        from fedpriv.runs.records import figures_as_json

        with ended_in_one_line(grid):
            if type(self) is not UserLevelStrategy:
                raise ValueError(
                    f"{type(self).__name__} is derived from UserLevelStrategy, whose hooks are not "
                    "called: use the class itself, or write a loop over fedpriv.flower.connect"
                )
            if num_rounds != self.plan.planned_rounds:
                raise ValueError(
                    f"num_rounds={num_rounds}, but the plan's ε is of {self.plan.planned_rounds} "
                    f"rounds; give that number, or make a plan of {num_rounds}"
                )
            if evaluate_config is not None and not self.diagnostics:
                raise ValueError(
                    "evaluate_config is given, but nodes evaluate nothing: their exact metrics are "
                    "covered by no ε; leave it out, or give the strategy diagnostics=True in "
                    "simulation"
                )
            show_log()
            params, as_sent = _params(initial_arrays), _as_json(train_config)
            loop = averaging(
                self.plan,
                roster=self.roster,
                params=params,
                stated={"train_config": as_sent},
                on_round=lambda round_num, released: measure(round_num, _record(released)),
                tell=lambda line: _LOG.info("%s", line),
                **self._kept,
                **self._made,
            )
            settings = replace(
                self.settings, round_deadline=min(timeout, self.settings.round_deadline)
            )
            settings.check_mode("secure" if self._kept["secure"] else "simulation")
            result, digest = UserLevelResult(), plan_digest(self.plan, self.roster)
            _LOG.info("plan %s", digest)
            _LOG.info("waiting for the nodes of %d users", len(self.roster))
            counts = None if self._kept["secure"] else self.counts
            backend = connect(grid, self.roster, settings, plan=digest, counts=counts)
            out: Path | None = self._kept["out"]

            def measure(round_num: int, arrays: ArrayRecord) -> None:
                if (
                    evaluate_fn is not None
                    and (found := evaluate_fn(round_num, arrays)) is not None
                ):
                    result.evaluate_metrics_serverapp[round_num] = found
                    _LOG.info("round %d: evaluate_fn %s", round_num, dict(found))
                if self.diagnostics and round_num:
                    found = _diagnostics(backend, arrays, round_num, evaluate_config, settings)
                    result.evaluate_metrics_clientapp[round_num] = found
                    if out is not None:
                        file = out / "diagnostics.jsonl"
                        nodes = figures_as_json({f"nodes_{name}": found[name] for name in found})
                        json_lines.replace_last(file, {**json_lines.read_last(file), **nodes})

            if out is None or not (out / "ledger.jsonl").exists():
                measure(0, initial_arrays)
            result.run = loop(replace(backend, config=ConfigRecord(as_sent) if as_sent else None))
            result.arrays = _record(result.run.params)
            return result

    def _refuse(self, *given: Any, **named: Any) -> NoReturn:
        """Refuse a caller's loop: it would send what is not charged, or keep what has no noise."""
        raise ValueError(
            "UserLevelStrategy charges, draws, sums and adds noise within its own start(): a "
            "strategy that wraps it, or a loop that calls its hooks, would send what is not "
            "charged or keep what has no noise. Call its start(), or write a loop over "
            "fedpriv.flower.connect"
        )

    # Flower's own `start` of a wrapper calls `summary`, too.
    summary = configure_train = aggregate_train = _refuse
    configure_evaluate = aggregate_evaluate = _refuse


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _params(arrays: ArrayRecord) -> Params:
    """Return arrays as params.

    Raises:
        ValueError: If there are none, or one is not float32 or not finite.
    """
    found = {name: array.numpy() for name, array in arrays.items()}
    if not found:
        raise ValueError("initial_arrays is empty; give ArrayRecord(model.state_dict())")
    for name, array in found.items():
        if array.dtype != np.float32:
            raise ValueError(
                f"initial_arrays has {name!r} of {array.dtype}, and only float32 is bounded and "
                "noised; leave counters out (use GroupNorm in place of BatchNorm), or convert it"
            )
        if not np.isfinite(array).all():
            raise ValueError(
                f"initial_arrays has {name!r} with numbers that are not finite, from which no user "
                "could train; give another start"
            )
    return found


def _record(params: Mapping[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in params.items()})


def _as_json(config: ConfigRecord | None) -> dict[str, Any]:
    """Return a train config as the ledger keeps it.

    Raises:
        ValueError: If it holds bytes.
    """
    as_sent = {} if config is None else dict(config)
    for name, value in as_sent.items():
        if isinstance(value, bytes) or (
            isinstance(value, list) and any(isinstance(item, bytes) for item in value)
        ):
            raise ValueError(
                f"train_config has bytes under {name!r}, which the ledger's first line cannot "
                "hold; give numbers, words or truth values"
            )
    return as_sent


def _diagnostics(
    backend: GridBackend,
    arrays: ArrayRecord,
    round_num: int,
    config: ConfigRecord | None,
    settings: GridSettings,
) -> MetricRecord:
    """Return the mean of the nodes' metrics, weighted by `num-examples`; covered by no ε."""
    as_sent = ConfigRecord({**(config or {}), "server-round": round_num})
    content = RecordDict({"arrays": arrays, "config": as_sent})
    requests = (
        Message(content, node, MessageType.EVALUATE, ttl=settings.round_deadline + 60.0)
        for node in sorted(set(backend.registry.node_of.values()))
    )
    total: Counter[str] = Counter()
    weights: Counter[str] = Counter()
    failed: list[str] = []
    for reply in backend.exchange.answers(
        requests,
        seconds=settings.round_deadline,
        on_error=lambda reply: failed.append(reason_of(reply)),
    ):
        found: dict[str, Any] = {}
        for record in reply.content.metric_records.values():
            found |= record
        weight = found.pop(_WEIGHT, 1.0)
        if not _is_number(weight) or weight < 0:
            failed.append(f"its {_WEIGHT} is no finite number of at least 0")
            continue
        for name, value in found.items():
            if _is_number(value):
                total[name] += weight * value
                weights[name] += weight
    if failed and round_num == 1:
        _LOG.warning("%d nodes did not evaluate, the first said: %s", len(failed), failed[0])
    return MetricRecord({name: total[name] / weight for name, weight in weights.items() if weight})
