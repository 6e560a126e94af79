"""Whole runs on Ray: from the command line, resumed from elsewhere, interrupted."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from fedpriv import cli
from fedpriv.backends.ray.cluster import Cluster, Request
from fedpriv.experiments.load import load_experiment
from fedpriv.runs.backends import on_ray, serial
from fedpriv.runs.prepared import resume_run, start_run
from tests.harness.refusals import refuses
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.ray
NAME = "adadps-tags"
OPTIONS = {
    "cohort": 8,
    "cohort-cap": 30,
    "rounds": 4,
    "noise-multiplier": 1.0,
    "delta": 0.001,
    "eval-every": 2,
    "seed": 11,
}


def start(corpus, out, backends=serial, **more):
    experiment = load_experiment(NAME).with_options(OPTIONS)
    return start_run(experiment, NAME, corpus, out, make_backend=backends, **more)


def ray_backends(ray, corpus):
    ray.share = replace(ray.share, num_workers=2)
    return on_ray(ray, NAME, str(corpus.directory))


def params(folder, round_num=4):
    return load_file(folder / "checkpoints" / f"round-{round_num:06d}.safetensors")


def same(left, right):
    left, right = params(left), params(right)
    return all(np.array_equal(left[name], right[name]) for name in right)


def lines(folder, name):
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def oracle(tiny_corpus, tmp_path_factory):
    """The run in one process."""
    out = tmp_path_factory.mktemp("runs") / "serial"
    start(tiny_corpus, out).run()
    return out


class Stop(Exception):
    pass


def stop_after(number):
    def look(record):
        if record.released.round_num == number:
            raise Stop

    return look


@pytest.mark.slow
def test_a_run_begun_in_one_process_ends_on_ray_with_the_same_model(
    ray, tiny_corpus, oracle, tmp_path
):
    out = tmp_path / "run"
    with pytest.raises(Stop):
        start(tiny_corpus, out).run(stop_after(2))
    prepared = resume_run(out, make_backend=ray_backends(ray, tiny_corpus))
    summary = prepared.run()
    assert same(out, oracle)
    backends = lines(out, "backends")
    assert [(line["name"], line["first_round"]) for line in backends] == [("serial", 1), ("ray", 3)]
    assert summary["backend"] == {k: v for k, v in backends[1].items() if k != "first_round"}
    assert summary["backend"]["workers"] == 2 and len(summary["backend"]["devices"]) == 2
    expected = json.loads((oracle / "summary.json").read_text())
    for figure in ("accuracy", "recall_at_5", "accuracy_public", "recall_at_5_public", "epsilon"):
        assert summary[figure] == expected[figure]
    seen, told = lines(out, "diagnostics")[-1], lines(oracle, "diagnostics")[-1]
    assert seen["loss"] == pytest.approx(told["loss"], rel=1e-9)
    assert (seen["accuracy"], seen["num_failed"]) == (told["accuracy"], 0)


def command(corpus, out, *more, **changes):
    given = (OPTIONS | changes).items()
    options = [text for name, value in given for text in ("-s", f"{name}={value}")]
    return [
        *(sys.executable, "-m", "fedpriv", "run", NAME, "--corpus", str(corpus.directory)),
        *(*options, "--backend", "ray", "--workers", "2", "--out", str(out), *more),
    ]


def processes_of(session):
    """Every process of a session, by id."""
    found = []
    for process in psutil.process_iter(["status"]):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(process.pid) == session and process.info["status"] != "zombie":
                found.append(process.pid)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_interrupted_leaves_no_process_behind(tiny_corpus, oracle, tmp_path, sent):
    out = tmp_path / "run"
    started = subprocess.Popen(
        command(tiny_corpus, out, rounds=100_000),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell has its background jobs ignore Ctrl-C, and tests may run in one.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        wait_until(lambda: (out / "rounds.jsonl").exists() or started.poll() is not None)
        assert len(processes_of(started.pid)) > 3
        started.send_signal(sent)
        said = started.communicate(timeout=900)[1]
        assert started.returncode == 128 + sent
        assert "starting Ray for 2 workers" in said and "s to start" in said
        assert (f"--resume {out}" in said) == (sent == signal.SIGINT)
        wait_until(lambda: not processes_of(started.pid))
    finally:
        for process in processes_of(started.pid):
            os.kill(process, signal.SIGKILL)


def test_what_cannot_be_had_leaves_nothing_behind(tiny_corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    out = tmp_path / "run"
    _, _, *arguments = command(tiny_corpus, out, "--gpus-per-worker", "1")
    monkeypatch.setattr("sys.argv", arguments)
    monkeypatch.setattr("sys.path", list(sys.path))
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2 and "gpus" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.slow
def test_a_cluster_that_was_joined_goes_on(ray, tiny_corpus, oracle, tmp_path):
    import ray as api

    address = api.get_runtime_context().gcs_address
    for name, said, more in (("run", "", ()), ("many", "has 2 CPUs", ("--workers", "50"))):
        out = tmp_path / name
        asked = [*command(tiny_corpus, out, "--ray-address", address), *more]
        done = subprocess.run(asked, capture_output=True, text=True)
        assert said in done.stderr
        if not said:
            assert done.returncode == 0, done.stderr
            assert same(out, oracle)
    assert api.get(api.remote(lambda: 4).remote()) == 4


@pytest.mark.parametrize("address", ["127.0.0.1:1", "localhost", "ray://127.0.0.1:10001"])
def test_an_address_where_nobody_answers_is_an_error(address):
    with refuses(ValueError, address, "--ray-address"):
        Cluster(Request(address=address))
