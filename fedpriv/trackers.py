"""Trackers: what a run releases, sent to TensorBoard, MLflow or Weights & Biases.

Each is a callback (`fedpriv.runs.callbacks`): it is given the lines of `rounds.jsonl` and the run's
options, ε, δ, relation, unit and accountant, and nothing else unless `diagnostics=True`. Their
packages come with `pip install 'fedpriv[trackers]'`.

    fp.run("adadps-tags", callbacks=[TensorBoard("runs/board")])
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpriv.hashes import document_sha256
from fedpriv.libraries import library, need
from fedpriv.privacy.statement.sealed import SealedRun
from fedpriv.runs.callbacks import Callback, describe_run, make_clock, numbers

#: Most params that MLflow takes in one request, and characters of one.
_MLFLOW_PARAMS, _MLFLOW_LENGTH = 100, 6000


class TensorBoard(Callback):
    """Scalars of every round in an event file, and the run's options as a text.

    Values are float32, the form that every TensorBoard reader shows; `rounds.jsonl` has all digits.
    A run that is resumed goes on in a further file, and writes no value a second time.

    Args:
        directory: Where event files are written: one folder a run, as for TensorBoard itself.
        diagnostics: As of `Callback`.

    Raises:
        ValueError: If tensorboard is not installed.
    """

    def __init__(self, directory: str | Path, *, diagnostics: bool = False) -> None:
        need("tensorboard", "trackers", "TensorBoard")
        self.directory, self.diagnostics = Path(directory), diagnostics
        self._writer: Any = None

    def on_start(self, run: SealedRun) -> None:
        """Open the event file; values in earlier ones of the same run are not written again."""
        self._time = make_clock(run.mode)
        suffix = f".{document_sha256(describe_run(run))[:16]}"  # of this run's files alone
        self._last_round = _last_steps(self.directory, suffix) if run.state.rounds_done else {}
        writer = library("torch.utils.tensorboard").SummaryWriter
        self._writer = writer(str(self.directory), filename_suffix=suffix)
        if not self._last_round:
            self._text("run", describe_run(run))

    def on_round(self, released: Mapping[str, Any], round_num: int) -> None:
        """Write the numbers of a round that were not written yet."""
        for name, value in numbers(released).items():
            if round_num > self._last_round.get(name, 0):
                self._writer.add_scalar(name, value, round_num, walltime=self._time())
                self._last_round[name] = round_num
        self._writer.flush()

    def on_end(self, summary: Mapping[str, Any] | None) -> None:
        """Write the summary, and close the file."""
        if summary is not None:
            self._text("summary", summary)
        self._writer.close()

    def _text(self, tag: str, values: Mapping[str, Any]) -> None:
        rows = "\n".join(f"| {name} | {_word(value)} |" for name, value in values.items())
        table = f"| name | value |\n|---|---|\n{rows}"
        self._writer.add_text(tag, table, 0, walltime=self._time())


def _last_steps(directory: Path, suffix: str) -> dict[str, int]:
    """Return the last step of each scalar in the event files whose names end in a suffix."""
    reader = library("tensorboard.backend.event_processing.event_accumulator").EventAccumulator
    found = dict[str, int]()
    for file in directory.glob(f"events.out.tfevents.*{suffix}"):
        events = reader(str(file))
        events.Reload()
        for name in events.Tags()["scalars"]:
            found[name] = max(found.get(name, 0), events.Scalars(name)[-1].step)
    return found


class MLflow(Callback):
    """A run of an MLflow server: options as params, released values as metrics by round.

    A run that is resumed is a new run there, with all rounds from the first.

    Args:
        uri: Of the tracking server, such as "http://127.0.0.1:5000", or a database, such as
            "sqlite:///mlflow.db".
        experiment: MLflow's name for a group of runs; made where there is none.
        diagnostics: As of `Callback`.

    Raises:
        ValueError: If mlflow is not installed, or refuses the address, as of a folder.
    """

    def __init__(self, uri: str, *, experiment: str = "fedpriv", diagnostics: bool = False) -> None:
        need("mlflow", "trackers", "MLflow")
        self.uri, self.experiment, self.diagnostics = uri, experiment, diagnostics
        # Not mlflow's own functions: those add the user's name, the script and its git commit.
        make = library("mlflow.tracking").MlflowClient
        try:
            self._client = make(tracking_uri=uri)
        except library("mlflow.exceptions").MlflowException as error:
            why = " ".join(str(error).split()).partition(". ")[0]
            raise ValueError(
                f"MLflow takes no runs at {uri!r} ({why}); give a server, such as "
                "http://127.0.0.1:5000, or a database, such as sqlite:///mlflow.db"
            ) from error

    def on_start(self, run: SealedRun) -> None:
        """Make the run there, and log what identifies this one."""
        self._time = make_clock(run.mode)
        self._entities = library("mlflow.entities")
        found = self._client.get_experiment_by_name(self.experiment)
        number = (
            self._client.create_experiment(self.experiment)
            if found is None
            else found.experiment_id
        )
        made = self._client.create_run(number, start_time=self._now(), run_name=run.label)
        self.run_id: str = made.info.run_id
        params = [
            self._entities.Param(name, _word(value)[:_MLFLOW_LENGTH])
            for name, value in describe_run(run).items()
        ]
        for first in range(0, len(params), _MLFLOW_PARAMS):
            self._client.log_batch(self.run_id, params=params[first : first + _MLFLOW_PARAMS])

    def on_round(self, released: Mapping[str, Any], round_num: int) -> None:
        """Log the numbers of a round."""
        now = self._now()
        found = [
            self._entities.Metric(name, value, now, round_num)
            for name, value in numbers(released).items()
        ]
        self._client.log_batch(self.run_id, metrics=found)

    def on_end(self, summary: Mapping[str, Any] | None) -> None:
        """Log the summary as tags, and end the run there."""
        for name, value in (summary or {}).items():
            self._client.set_tag(self.run_id, f"summary.{name}", _word(value))
        status = "KILLED" if summary is None else "FINISHED"
        self._client.set_terminated(self.run_id, status, end_time=self._now())

    def _now(self) -> int:
        return int(1000 * self._time())


class WandB(Callback):
    """A run of Weights & Biases, online or offline as `wandb` itself is set (`WANDB_MODE`).

    Nothing of the machine is sent: no host's name, console, code, git commit, packages or load. A
    run that is resumed is a new run there, with all rounds from the first. wandb stamps each row
    with the seconds since it began, which no setting takes away: of a secure run all rows are sent
    at its end.

    Args:
        project: Its name there.
        directory: Where wandb keeps its files; None for its own default.
        diagnostics: As of `Callback`.

    Raises:
        ValueError: If wandb is not installed.
    """

    def __init__(
        self, project: str, *, directory: str | Path | None = None, diagnostics: bool = False
    ) -> None:
        need("wandb", "trackers", "WandB")
        self.project, self.directory, self.diagnostics = project, directory, diagnostics

    def on_start(self, run: SealedRun) -> None:
        """Begin a run there, with what identifies this one as its config."""
        self._time, self._held = make_clock(run.mode), dict[int, dict[str, float]]()
        self._holds = run.mode != "simulation"
        wandb = library("wandb")
        settings = wandb.Settings(
            silent=True,
            host="withheld",
            console="off",
            save_code=False,
            disable_code=True,
            disable_git=True,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )
        self._run = wandb.init(
            project=self.project,
            name=run.label,
            config=describe_run(run),
            dir=None if self.directory is None else str(self.directory),
            reinit="create_new",
            settings=settings,
        )

    def on_round(self, released: Mapping[str, Any], round_num: int) -> None:
        """Log the numbers of a round."""
        self._held[round_num] = numbers(released)
        if not self._holds:
            self._send()

    def on_end(self, summary: Mapping[str, Any] | None) -> None:
        """Log the summary, and end the run there."""
        self._send()
        if summary is not None:
            shown = {n: _word(v) if isinstance(v, list | tuple) else v for n, v in summary.items()}
            self._run.summary.update({f"summary.{n}": v for n, v in shown.items()})
        self._run.finish(exit_code=1 if summary is None else 0)

    def _send(self) -> None:
        for round_num, values in self._held.items():
            row = {**values, "_timestamp": self._time()}
            # wandb keeps a row open until the next: it may be logged again, but not at the end.
            self._run.log(row, step=round_num, commit=True if self._holds else None)
        self._held.clear()


_KINDS = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def tracker_of(text: str) -> Callback:
    """Return the tracker that "tensorboard:DIR", "mlflow:URI" or "wandb:PROJECT" names.

    Raises:
        ValueError: If it names none, or its package is not installed.
    """
    kind, _, where = text.partition(":")
    if kind not in _KINDS or not where:
        raise ValueError(
            f"track {text!r} names no tracker; give tensorboard:DIR, mlflow:URI or wandb:PROJECT"
        )
    return _KINDS[kind](where)


def _word(value: Any) -> str:
    """Return a value as one line of text; an ε or δ keeps all of its digits."""
    if isinstance(value, list | tuple):
        return "; ".join(str(one) for one in value)  # pyright: ignore[reportUnknownVariableType]
    return "none" if value is None else str(value)
