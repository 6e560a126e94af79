"""A process that runs benchmarks, and every process of Python that they start, in forks of itself.

Importing fedpriv and torch takes seconds, and benchmarks start dozens of processes. One line of
JSON in, `{"argv": [...], "env": {...}, "cwd": "...", "log": "..."}`, one line out: the exit status.
What is printed goes to the log; the scripts that were run stand in the file $FORKED_SCRIPTS.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import multiprocessing
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
IMPORTED = (
    "fedpriv.api", "fedpriv.cli", "fedpriv.datasets.importers.locate",
    "fedpriv.datasets.importers.synthetic", "fedpriv.datasets.stackexchange.word_view",
    "fedpriv.experiments.load", "fedpriv.kernels.normals", "fedpriv.kernels.tag_scores",
    "fedpriv.models", "fedpriv.mechanisms.correlated.optimise",
    "fedpriv.runs.prepared", "fedpriv.tasks.central", "fedpriv.tasks.tag_prediction",
    "fedpriv.tasks.next_words", "fedpriv.training.public_learning",
    "fedpriv.training.per_example.module", "fedpriv.training.local.words",
    "dp_accounting.pld.privacy_loss_distribution", "flwr.clientapp", "flwr.serverapp",
    "matplotlib.pyplot", "torch.func",
)  # fmt: skip


class Forked(subprocess.Popen):
    """A process of this Python is a fork of this one; any other program is started as ever."""

    def _execute_child(self, *given: Any) -> None:
        method = super()._execute_child  # type: ignore[misc]
        named = inspect.signature(method).bind(*given).arguments
        command = [str(part) for part in named["args"]]
        if command[0] != sys.executable or command[1] == "-c":
            method(*given)
            return
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            _become(command[1:], named)
        self.pid, self._child_created = pid, True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(named[end] for end in ends))  # type: ignore[attr-defined]


def _become(arguments: list[str], named: dict[str, Any]) -> None:
    """Run a script or a module in a forked child, and end there."""
    code = 1
    try:
        if named["start_new_session"]:
            os.setsid()
        for end, descriptor in (("p2cread", 0), ("c2pwrite", 1), ("errwrite", 2)):
            if named[end] != -1:
                os.dup2(named[end], descriptor)
        os.closerange(3, 1024)  # pipes of the parent's other children
        streams = zip((0, 1, 2), "rww", strict=True)
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(descriptor, mode, 1, closefd=False) for descriptor, mode in streams
        )
        if named["env"] is not None:
            os.environ.clear()
            os.environ.update(named["env"])
        if named["cwd"] is not None:
            os.chdir(named["cwd"])
        if named["preexec_fn"] is not None:
            named["preexec_fn"]()
        code = _run(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _run(arguments: list[str]) -> int:
    for name, module in list(sys.modules.items()):
        if BENCHMARKS in Path(getattr(module, "__file__", None) or "").parents:
            del sys.modules[name]  # of the parent's script
    path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [*path, *(entry for entry in sys.path if BENCHMARKS not in _and_above(entry))]
    if module := arguments[0] == "-m":
        script, *rest = arguments[1:]
        sys.path.insert(0, os.getcwd())
    else:
        script, *rest = arguments
        if not Path(script).is_dir():
            sys.path.insert(0, str(Path(script).parent))
    sys.argv = [script, *rest]
    try:
        if module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except SystemExit as done:
        if done.code is None or isinstance(done.code, int):
            return done.code or 0
        print(done.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _logged(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return what runs a module or a file, and first writes down which."""

    def running(name: str, **options: Any) -> Any:
        file = Path(name)
        if file.is_dir():
            file /= "__main__.py"
        elif not file.is_file():
            spec = importlib.util.find_spec(name)
            file = Path((spec and spec.origin) or name)
        with open(os.environ["FORKED_SCRIPTS"], "a", encoding="utf-8") as log:
            log.write(f"{file}\n")
        return run(name, **options)

    return running


def _and_above(entry: str) -> tuple[Path, ...]:
    path = Path(entry)
    return (path, *path.parents)


def main() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        raise SystemExit(f"{threads} threads run: a fork of this process may wait for ever")
    runpy.run_path, runpy.run_module = _logged(runpy.run_path), _logged(runpy.run_module)
    subprocess.Popen = Forked  # type: ignore[misc]
    multiprocessing.get_context = partial(  # type: ignore[assignment]
        lambda get, method=None: get("fork"), multiprocessing.get_context
    )
    for line in sys.stdin:
        asked = json.loads(line)
        with open(asked["log"], "wb") as log:
            status = subprocess.run(
                [sys.executable, *asked["argv"]],
                cwd=asked["cwd"], env=asked["env"], stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, check=False,
            ).returncode  # fmt: skip
        print(json.dumps({"status": status}), flush=True)


if __name__ == "__main__":
    main()
