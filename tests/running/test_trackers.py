"""Trackers against the real things, each in an environment of its own: read back by its reader.

The environments are made by pip and kept in pytest's cache.
"""

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np
import pytest

import fedpriv as fp
from tests.harness.kills import ROOT

pytestmark = pytest.mark.slow

RUN = """
import sys, fedpriv as fp
from fedpriv.trackers import *
from tests.harness.toy_users import toy_experiment
tracker = eval(sys.argv[3])
secure = sys.argv[2] == "secure"
made = toy_experiment(eval_every=2)
fp.run(made, sys.argv[1], callbacks=[tracker], progress=False, secure=secure)
print(getattr(tracker, "run_id", "none"))
"""
READ_TENSORBOARD = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util
found = EventAccumulator(sys.argv[1], purge_orphaned_data=False)  # all that was written
found.Reload()
tags = found.Tags()
rows, texts, times, points = {}, {}, set(), 0
for tag in tags["tensors"]:
    for event in found.Tensors(tag):
        times.add(event.wall_time)
        texts[tag] = tensor_util.make_ndarray(event.tensor_proto).item().decode()
for tag in tags["scalars"]:
    for event in found.Scalars(tag):
        times.add(event.wall_time)
        rows.setdefault(str(event.step), {})[tag] = event.value
        points += 1
others = [n for kind, n in tags.items() if kind not in ("tensors", "scalars") and n]
print(json.dumps({"rows": rows, "texts": texts, "times": len(times), "others": others,
                  "points": points}))
"""
READ_MLFLOW = """
import json, sys
from mlflow.tracking import MlflowClient
client = MlflowClient(sys.argv[1])
run = client.get_run(sys.argv[2])
rows, times = {}, []
for name in run.data.metrics:
    for one in client.get_metric_history(run.info.run_id, name):
        rows.setdefault(str(one.step), {})[one.key] = one.value
        times.append(one.timestamp)
print(json.dumps({"rows": rows, "times": times, "params": run.data.params, "tags": run.data.tags,
                  "status": run.info.status, "started": run.info.start_time,
                  "ended": run.info.end_time}))
"""
READ_WANDB = """
import json, pathlib, struct, sys
from wandb.proto.wandb_internal_pb2 import Record
(file,) = pathlib.Path(sys.argv[1]).glob("wandb/offline-run-*/run-*.wandb")
def records(content):  # LevelDB's log format: parts of records, in blocks of 32 KiB
    assert content[:4] == b":W&B"
    at, parts = 7, []
    while at < len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        parts.append(content[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield b"".join(parts)
            parts = []
rows, config, summary, kinds, times, others = {}, {}, {}, set(), set(), {}
def name(item):
    return item.key or "/".join(item.nested_key)
for data in records(file.read_bytes()):
    record = Record()
    record.ParseFromString(data)
    kind = record.WhichOneof("record_type")
    kinds.add(kind)
    if kind == "history":
        values = {name(i): json.loads(i.value_json) for i in record.history.item}
        times.add(values.pop("_timestamp"))
        others.setdefault("_runtime", []).append(values.pop("_runtime", None))
        rows.setdefault(str(values.pop("_step")), {}).update(values)
    elif kind == "run":
        config |= {name(i): json.loads(i.value_json) for i in record.run.config.update}
        others["host"], others["git"] = record.run.host, str(record.run.git)
    elif kind == "config":
        config |= {name(i): json.loads(i.value_json) for i in record.config.update}
    elif kind == "summary":
        summary |= {name(i): json.loads(i.value_json) for i in record.summary.update}
names = sorted(p.name for p in (file.parent / "files").rglob("*") if p.is_file())
print(json.dumps({"rows": rows, "config": config, "summary": summary, "kinds": sorted(kinds),
                  "times": len(times), "files": names, "others": others}))
"""


def environment(request: pytest.FixtureRequest, name: str, *packages: str) -> Path:
    """The interpreter of an environment that has the packages, and ours behind them."""
    folder = Path(request.config.cache.mkdir(f"venv-{name}"))
    python, done = folder / "bin" / "python", folder / "made.json"
    wanted = json.dumps([sys.executable, *packages])
    if not done.is_file() or done.read_text("utf-8") != wanted:
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", *packages, "protobuf<7"], check=True
        )
        (own,) = folder.glob("lib/python*/site-packages")
        # Behind its own: what it needs in another version comes first.
        (own / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
        done.write_text(wanted, "utf-8")
    return python


def call(python: Path, code: str, *args: object, cwd: Path) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "WANDB_MODE": "offline"}
    done = subprocess.run(
        [python, "-W", "ignore", "-c", code, *map(str, args)],
        capture_output=True, text=True, env=env, check=False, cwd=cwd,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def released(out: Path) -> dict[str, dict[str, float]]:
    """Every number of `run.rounds(every=True)` by round and name."""
    frame = fp.load(out).rounds(every=True)
    return {
        str(number): {str(name): float(value) for name, value in row.items() if value == value}
        for number, row in frame.iterrows()
    }


def check_privacy(texts, out: Path) -> None:
    run = fp.load(out)
    assert float(texts["epsilon"]) == run.epsilon.value and float(texts["delta"]) == 0.01
    assert texts["relation"] == "add-remove" and texts["unit"] == "user"
    assert texts["accountant"] == "PLD" and texts["mode"] == run.description["mode"]
    given = {name: "none" if v is None else str(v) for name, v in run.options.items()}
    for name, value in given.items():
        assert str(texts[f"options.{name}"]) == value
    facts = {"experiment", "label", "synthetic", "epsilon_does_not_cover"}
    privacy = {"epsilon", "delta", "relation", "unit", "accountant", "mode"}
    assert set(texts) == facts | privacy | {f"options.{name}" for name in given}


@pytest.mark.parametrize("mode", ["simulation", "secure"])
def test_tensorboard(mode, request, tmp_path):
    python = environment(request, "tensorboard", "tensorboard==2.21.0")
    out, board = tmp_path / "run", tmp_path / "board"
    tracker = f"TensorBoard({str(board)!r})"
    call(python, RUN, out, mode, tracker, cwd=tmp_path)
    found = json.loads(call(python, READ_TENSORBOARD, board, cwd=tmp_path))
    assert found["rows"] == singly(released(out)) and found["others"] == []
    rows = found["texts"]["run/text_summary"].splitlines()[2:]
    check_privacy(dict(re.fullmatch(r"\| (\S+) \| (.*) \|", row).groups() for row in rows), out)
    assert f"| epsilon | {fp.load(out).epsilon.value} |" in found["texts"]["summary/text_summary"]
    assert set(found["texts"]) == {"run/text_summary", "summary/text_summary"}
    if mode == "secure":  # nor how long a round took
        assert found["times"] == 1


def singly(rows):
    """The numbers of rounds in single precision."""
    return {n: {name: float(np.float32(v)) for name, v in row.items()} for n, row in rows.items()}


def test_mlflow(request, tmp_path):
    python = environment(request, "mlflow", "mlflow==3.17.2")
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    for mode in ("simulation", "secure"):
        out = tmp_path / mode
        run_id = call(python, RUN, out, mode, f"MLflow({store!r})", cwd=tmp_path)
        found = json.loads(call(python, READ_MLFLOW, store, run_id, cwd=tmp_path))
        assert found["rows"] == released(out)
        check_privacy(found["params"], out)
        assert found["tags"].pop("summary.epsilon") == str(fp.load(out).epsilon.value)
        rest = {name for name in found["tags"] if not name.startswith("summary.")}
        assert rest == {"mlflow.runName"} and found["status"] == "FINISHED"
        if mode == "secure":
            assert set(found["times"]) == {found["started"]} == {found["ended"]}


def test_mlflow_refuses_a_folder_before_anything_is_run(request, tmp_path):
    python = environment(request, "mlflow", "mlflow==3.17.2")
    code = """
import sys, fedpriv.trackers as trackers
for where in ("file:" + sys.argv[1], sys.argv[1]):
    try:
        trackers.tracker_of(f"mlflow:{where}")
    except ValueError as error:
        assert repr(where) in str(error) and "sqlite" in str(error), error
    else:
        raise SystemExit(f"{where} was taken")
trackers.tracker_of("mlflow:sqlite:///" + sys.argv[1] + ".db")
print("done")
"""
    assert call(python, code, tmp_path / "mlruns", cwd=tmp_path) == "done"


@pytest.mark.parametrize("mode", ["simulation", "secure"])
def test_wandb_offline(mode, request, tmp_path):
    python = environment(request, "wandb", "wandb==0.31.0")
    out = tmp_path / "run"
    tracker = f"WandB('studies', directory={str(tmp_path)!r})"
    call(python, RUN, out, mode, tracker, cwd=tmp_path)
    found = json.loads(call(python, READ_WANDB, tmp_path, cwd=tmp_path))
    assert found["rows"] == released(out)
    config = {n: v for n, v in found["config"].items() if not n.startswith("_wandb")}
    check_privacy(config, out)
    assert found["summary"]["summary.epsilon"] == fp.load(out).epsilon.value
    assert found["files"] == [] and found["others"]["host"] == "withheld"
    assert found["others"]["git"] == ""
    if mode == "secure":  # nor how long a round took: all rows were sent at the end
        assert found["times"] == 1
    names = {n for n in found["summary"] if not n.startswith(("summary.", "_"))}
    assert names == {name for row in found["rows"].values() for name in row}


def test_a_run_that_was_resumed_twice_is_written_once(request, tmp_path):
    python = environment(request, "tensorboard", "tensorboard==2.21.0")
    out, board = tmp_path / "run", tmp_path / "board"
    code = """
import sys, fedpriv as fp
from fedpriv.trackers import TensorBoard
from tests.harness.toy_users import toy_experiment
from tests.harness.kills import Killed, Stop
out, board = sys.argv[1:]
made = toy_experiment(eval_every=2)
for last in (2, 3, None):
    callbacks = [TensorBoard(board), Stop(last)]
    try:
        if last == 2:
            fp.run(made, out, callbacks=callbacks, progress=False)
        else:
            fp.resume(out, experiment=made, callbacks=callbacks, progress=False)
    except Killed:
        pass
print("done")
"""
    call(python, code, out, board, cwd=tmp_path)
    rows = singly(released(out))
    found = json.loads(call(python, READ_TENSORBOARD, board, cwd=tmp_path))
    assert found["rows"] == rows and set(rows) == {"1", "2", "3", "4"}
    assert found["points"] == sum(map(len, rows.values()))  # nothing was written a second time
