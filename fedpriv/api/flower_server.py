"""The ready ServerApp: the loop of `fedpriv run`, with Flower bringing the work to users.

The run folder is the same as that of any other run, and so are its guarantees: a round is charged
before its cohort is drawn, and the folder's `resume.toml` is the run-config that goes on after a
kill. Evaluation is central, on the server's own copy of the data.
"""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace
from functools import cache
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedpriv.backends.backend import Backend
from fedpriv.backends.flower.client import named_device
from fedpriv.backends.flower.exchange import naming_superlink
from fedpriv.backends.flower.log import ended_in_one_line, show_log
from fedpriv.backends.flower.settings import (
    missing_corpus_named,
    open_corpus,
    read_experiment,
    read_grid_settings,
    read_out,
    read_path,
    read_value,
    resume_config,
)
from fedpriv.backends.flower.strategy import GridBackend, GridSettings, connect
from fedpriv.experiments.experiment import Components, Experiment
from fedpriv.output_paths import writing_to
from fedpriv.privacy.statement.sealed import DOCUMENT
from fedpriv.privacy.statement.statement import describe_returned_model
from fedpriv.report.page import write_report
from fedpriv.runs.backends import serial, serial_on
from fedpriv.runs.document import read_document
from fedpriv.runs.prepared import PreparedRun, resume_run, start_run
from fedpriv.runs.progress import (
    announce,
    describe_beginning,
    describe_early_end,
    describe_folder,
    round_line,
)
from fedpriv.runs.records import RoundRecord
from fedpriv.runs.status import RESUME_FILE, StatusFile, recording_refusal, to_go_on
from fedpriv.training.evaluate import measure_of
from fedpriv.untrusted_text import plain

_LOG = logging.getLogger("fedpriv.server")


def make_server_app() -> ServerApp:
    """Return the app of `fedpriv.flower.server_app`."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        show_log()
        with ended_in_one_line(grid):
            _main(grid, context)

    return app


def _main(grid: Grid, context: Context) -> None:
    _LOG.info("preparing experiment %s", plain(str(context.run_config.get("experiment", ""))))
    with recording_refusal(read_path("resume", context.run_config)):
        settings = read_grid_settings(context.run_config)
        prepared = _open_run(context.run_config, settings)
    (title, _, guarantee), cautions = announce(prepared)
    _LOG.info("%s; %s", title, guarantee)
    for caution in cautions:
        _LOG.warning("%s", caution)
    path, ledger = prepared.folder.path, prepared.ledger
    _LOG.info("%s", describe_beginning(path, ledger, prepared.state.round_num))
    if not ledger.pays_for_more and (path / "summary.json").is_file():
        prepared.folder.close()
        return  # it ended, and all that an end writes is there
    task, plan = prepared.components.task, prepared.components.plan_sha256
    _LOG.info("plan %s", plan)
    status, then = StatusFile(path, ledger.mode), to_go_on(path)

    @cache
    def connected() -> GridBackend:
        _LOG.info("waiting for the nodes of %d users", len(task.roster))
        return connect(grid, task.roster, settings, plan=plan)

    def make_backend(experiment: Experiment, components: Components) -> Backend:
        found = connected().registry.node_of
        status.registered(nodes=len(set(found.values())), users=len(found))
        return replace(connected(), measure=measure_of(task), on_online=status.online)

    def report(record: RoundRecord) -> None:
        _LOG.info("%s", round_line(record, ledger, next(iter(task.measures), None)))
        status.round_ended(nodes_online=connected().look_at_nodes())

    with closing(prepared.folder), writing_to(path, f"; then {then}"), naming_superlink(then):
        run = replace(prepared, make_backend=make_backend)
        summary = run.run(report, tell=_LOG.info, within=status.kept)
    if why := describe_early_end(ledger.state):
        _LOG.warning("%s", why)
    returned, no_gain = describe_returned_model(summary)
    if returned:
        _LOG.log(logging.WARNING if no_gain else logging.INFO, "returned: %s", returned)
    _LOG.info("%s", describe_folder(path))
    with writing_to(path):
        _LOG.info("report: %s", write_report(path))


def _open_run(run_config: Any, settings: GridSettings) -> PreparedRun:
    experiment, resume = read_experiment(run_config), read_path("resume", run_config)
    secure = read_value(run_config, "secure")
    if secure and run_config.get("seed") not in (None, ""):
        raise ValueError(f"secure=true takes no seed (got {run_config['seed']}); leave one out")
    mode = "secure" if secure else "simulation"
    if resume is not None:
        mode = read_document(resume)["mode"]
        if secure and mode != "secure":
            raise ValueError(
                f"secure=true, but the run of resume={str(resume)!r} is a {mode}, and stays one: "
                "leave secure out to go on with it, or start a secure run in another folder"
            )
    settings.check_mode(mode)
    anchor = read_path("anchor", run_config)
    # Whether a device is there, its node knows; that the task trains on devices, any can say.
    on_devices = named_device(run_config) not in ("", "none")
    checked = serial_on("cpu") if on_devices else serial
    if resume is not None:
        prepared = resume_run(
            resume, experiment=str(run_config["experiment"]), make_backend=checked, anchor=anchor
        )
        chosen = prepared.experiment.options()
        automatic = {name: chosen[name] for name in experiment.automatic if name in chosen}
        if chosen != experiment.with_options(automatic).options():
            prepared.folder.close()
            raise ValueError(
                f"the run-config is another than that of {resume}, and nodes read it too: give "
                f"--run-config {resume / RESUME_FILE}, which goes on with that run"
            )
        return prepared
    out = read_out(run_config)
    if (out / DOCUMENT).exists():
        raise ValueError(
            f"{out} already holds a run; go on with it by --run-config {out / RESUME_FILE}, or "
            "give another out"
        )
    with missing_corpus_named():
        prepared = start_run(
            experiment,
            str(run_config["experiment"]),
            open_corpus(run_config),
            out,
            secure=secure,
            backend="flower",
            make_backend=checked,
            anchor=anchor,
            label=str(run_config.get("label") or "") or None,
        )
    (out / RESUME_FILE).write_text(resume_config(run_config, out), "utf-8")
    _LOG.info("if it is interrupted, %s", to_go_on(out))
    return prepared
