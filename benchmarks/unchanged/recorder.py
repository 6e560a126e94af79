"""Runs cases as somebody would who types the commands, and reads what they leave behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from cases import FigureCase, Option, RunCase, StudyCase
from dump import write_dump
from dying import STATUS
from run_figures import checkpoints, exact, read_run, read_study

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]


class Recorder:
    """Runs cases in a scratch folder, in as few processes as can be.

    Args:
        scratch: The folder.
        further: Options that every run is given whose experiment has them.
    """

    def __init__(self, scratch: Path, further: Mapping[str, Option] | None = None) -> None:
        self._scratch, self._further = scratch, dict(further or {})
        self._known: dict[str, set[str]] = {}
        inherited = [
            str(Path(entry).resolve())
            for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)
            if entry
        ]
        path = os.pathsep.join([*inherited, str(CHECKOUT), str(HERE)])
        self._environment = {
            **os.environ,
            "PYTHONPATH": path,
            "OMP_NUM_THREADS": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "TMPDIR": str(scratch),  # what a killed run cannot remove goes with the rest
        }
        self._session = subprocess.Popen(
            [sys.executable, str(HERE / "session.py")],
            cwd=scratch,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(scratch / "session.log").open("wb"),
            text=True,
        )

    def close(self) -> None:
        """Let the session end."""
        assert self._session.stdin is not None
        self._session.stdin.close()
        self._session.wait()

    def experiments(self) -> list[str]:
        """Make the corpora and return the names of federated experiments."""
        self._command(
            "data", "synthesize", "--users", "40", "--sentences", "1200", "--public-users", "20",
            "--out", str(self._scratch / "tags"), "--json",
        )  # fmt: skip
        dump = write_dump(self._scratch / "owners.Posts.xml")
        self._command("data", "import", str(dump), "--out", str(self._scratch / "owners"), "--json")
        listed = json.loads(self._command("list", "--json"))
        return [item["name"] for item in listed if "ray" in item["backends"]]

    def tree(self) -> str:
        """Return where the code comes from."""
        where = "import fedpriv, pathlib; print(pathlib.Path(fedpriv.__file__).parents[1])"
        return self._process([sys.executable, "-c", where]).stdout.strip()

    def figures(self, case: FigureCase) -> dict[str, Any]:
        """Return what a command prints."""
        printed = json.loads(self._command(*case.argv, "--json"))
        if isinstance(printed, list):  # of things that have names
            keys = sorted({key for item in printed for key in item})
            return {"figures": [item["name"] for item in printed], "keys": {"stdout": keys}}
        return {"figures": exact(printed), "keys": {"stdout": sorted(printed)}}

    def study(self, case: StudyCase, number: int) -> dict[str, Any]:
        """Return the numbers of a study's page and of what it stored."""
        folder = self._scratch / f"study-{number}"
        folder.mkdir()
        places = {
            "CORPUS": self._scratch / "tags",
            "RESULTS": folder / "results.jsonl",
            "OUT": folder / "page.md",
        }
        printed = self._command(*(str(places.get(word, word)) for word in case.argv))
        page = places["OUT"].read_text("utf-8") if "OUT" in case.argv else printed
        return {"figures": read_study(page.replace(str(self._scratch), ""), folder)}

    def run(self, case: RunCase, number: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return what a run left in its folder, and its last tensors where they are kept."""
        folder = self._scratch / f"run-{number}"
        if self._further:
            case = replace(case, options={**case.options, **self._for(case.experiment)})
        started = False
        for charges in case.dies:
            command = self._go_on(case, folder) if started else self._begin(case, folder)
            dying = [str(HERE / "dying.py"), str(charges), "same_noise", *command]
            died = self._process([sys.executable, *dying], check=False)
            started = True
            if died.returncode != STATUS:
                raise RuntimeError(f"it did not die after charge {charges}: {died.stderr[-500:]}")
        command = self._go_on(case, folder) if started else self._begin(case, folder)
        if command[0] == "fedpriv":
            self._command(*command[1:])
        else:
            self._process([sys.executable, "-m", "same_noise", *command])
        verified = json.loads(self._command("verify", str(folder), "--json"))
        found = read_run(folder)
        found["verified"] = {"ok": verified["ok"], "lost": verified["lost"]}
        found["keys"]["verify"] = sorted(verified)
        last = list(checkpoints(folder).values())[-1] if case.compared == "1e-6" else {}
        return found, {f"{case.name}/{name}": array for name, array in last.items()}

    def _for(self, experiment: str) -> dict[str, Option]:
        """Return those of the further options that an experiment has."""
        if experiment not in self._known:
            listed = json.loads(self._command("list", experiment, "--json"))
            self._known[experiment] = {option["name"] for option in listed["options"]}
        return {n: v for n, v in self._further.items() if n in self._known[experiment]}

    def _begin(self, case: RunCase, folder: Path) -> list[str]:
        """Return module and arguments that start a run."""
        if case.nodes:
            return self._on_flower(case, out=str(folder))
        corpus = ["--corpus", str(self._scratch / case.corpus)] if case.corpus else []
        options = [
            item for pair in case.options.items() for item in ("-s", "=".join(map(str, pair)))
        ]
        secure = ["--secure"] if case.secure else []
        return [
            "fedpriv", "run", case.experiment, *corpus, *options, *secure, *case.backend,
            "--out", str(folder), "--keep-checkpoints", "all", "--json",
        ]  # fmt: skip

    def _go_on(self, case: RunCase, folder: Path) -> list[str]:
        """Return module and arguments that resume a run."""
        if case.nodes:
            return self._on_flower(case, resume=str(folder))
        more = ["--keep-checkpoints", "all", "--json"]
        # No folder gets to run code of one's own by itself.
        named = [case.experiment] if ":" in case.experiment else []
        return ["fedpriv", "run", *named, "--resume", str(folder), *case.goes_on, *more]

    def _on_flower(self, case: RunCase, **paths: str) -> list[str]:
        corpus = {"corpus": str(self._scratch / case.corpus)} if case.corpus else {}
        config = {"experiment": case.experiment, **corpus, **case.options, **paths}
        return ["on_flower", str(case.nodes), json.dumps(config)]

    def _command(self, *argv: str) -> str:
        """Return what a command of fedpriv prints, run in the session.

        Raises:
            RuntimeError: If it fails.
        """
        assert self._session.stdin is not None and self._session.stdout is not None
        self._session.stdin.write(json.dumps({"argv": argv}) + "\n")
        self._session.stdin.flush()
        line = self._session.stdout.readline()
        if not line:
            log = (self._scratch / "session.log").read_text("utf-8", "replace")
            raise SystemExit(f"the session died at `fedpriv {' '.join(argv)}`: {log[-2000:]}")
        answer = json.loads(line)
        if answer["code"] != 0:
            raise RuntimeError(f"fedpriv {argv[0]}: {answer['err'].strip()[-500:]}")
        return answer["out"]

    def _process(
        self, command: list[str], *, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command,
            cwd=self._scratch,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"{command[1:3]}: {done.stderr.strip()[-500:]}")
        return done
