"""The run folder: what a run leaves on disk, in the order that survives a kill at any moment.

=====================  ======================================================================
experiment.json        options, plan, corpus, versions: written once
data.key               of a secure run that knows a digest of its data: the secret that keys it;
                       never to be published
ledger.jsonl           charges and releases, hash-chained, synced (`fedpriv.privacy.ledger.ledger`);
                       of a finished run its last line has the digests of the other files
rounds.jsonl           released values only
diagnostics.jsonl      what only a simulation may see; not covered by ε, readable by its owner alone
by_user.safetensors    private, of a simulation: for each rostered user the number of held-out
                       examples, the sum of the headline measure over them, and the same sum for the
                       public-only model; readable by its owner alone
backends.jsonl         which backend ran from which round on, its workers and devices
vocabulary.json        what a tag model's rows and columns mean, for `fedpriv predict`; a custom
                       task may bring files of other names (`Task.files`)
checkpoints/           released params, one file a round, pruned
start.safetensors      what training started from, if not the params of the task
state.safetensors      what else the next round needs, replaced atomically every round
secret/                where it is needed: keys of noise with memory and of a release that is
                       replayed, who took part so far (`runs/secret_state.py`); readable by its
                       owner alone, never to be published
summary.json           the figures of a finished run
selected.safetensors   the model that it returns, where that was selected on public examples
status.json            of a deployed run: nodes, last error, when the last round ended
                       (`runs/status.py`)
resume.toml            of a deployed run: the run-config that goes on with it
=====================  ======================================================================

A round is charged in the ledger before anything is drawn; its state is in place before it is
recorded as released. Killed in between, the attempt is spent and the round is done again.

Steps of centralised training come by the ten thousand, and a file a step would cost more than the
step. Each is charged all the same, but only every `eval-every`-th and the last are kept, released
and written down. After a kill the run goes on from the last step that was kept; the steps since
are lost attempts, and spent.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedpriv import json_lines
from fedpriv.checkpoints.store import CheckpointStore, load_state, save_state
from fedpriv.checkpoints.tensor_files import (
    BY_USER,
    SELECTED,
    START_FILE,
    check_frozen,
    read_frozen_bytes,
    write_tensors,
)
from fedpriv.datasets.digests import read_secret, write_secret
from fedpriv.experiments.experiment import Components
from fedpriv.experiments.start import Start
from fedpriv.hashes import document_sha256, file_sha256
from fedpriv.measures import figures_of, read_measures
from fedpriv.output_paths import refuse_links
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.plan import AnyPlan
from fedpriv.privacy.statement.coverage import KEY
from fedpriv.privacy.statement.sealed import DOCUMENT, LEDGER, SEAL
from fedpriv.privacy.statement.stated import gaps_of_rounds, round_values
from fedpriv.runs.document import experiment_of, read_document, write_json
from fedpriv.runs.noise_root import NOISE, noise_digest
from fedpriv.runs.records import Released, measured, record_to_json
from fedpriv.tasks.task import BaseTask, check_data_digests
from fedpriv.training.algorithm import ArrayState

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.[a-z0-9]+")
# What a line of the ledger names at a run's end. It names checkpoints as they are released, and by
# `experiment.json` what was there before the first.
_SEALED = (
    "rounds.jsonl", "diagnostics.jsonl", "backends.jsonl", "state.safetensors", "summary.json",
    SELECTED, BY_USER,
)  # fmt: skip
# Written after the ledger: without one, what their run has spent is unknown.
_AFTER_THE_LEDGER = (*_SEALED, "checkpoints", "secret")
# Files that a run folder or an export holds itself.
_RESERVED_FILES = frozenset({
    DOCUMENT, LEDGER, START_FILE, *_SEALED, "data.key", "report.html", "model.safetensors",
    "README.md", "resume.toml", "status.json", "refused.json", "audit.json",
})  # fmt: skip


class UnkeptRun:
    """A run in memory: its ledger alone. It answers as a `RunFolder` does, and writes nothing.

    Args:
        plan: The plan.
        mode: "simulation" or "secure".
    """

    path = None
    is_hardened = False

    def __init__(self, plan: AnyPlan, mode: str) -> None:
        self.ledger = Ledger.in_memory(plan, mode=mode)

    def resume(self, first: ArrayState) -> ArrayState:
        """Return the state before round 1."""
        return first

    def keep(self, state: ArrayState) -> None:
        """Keep nothing."""

    def record(self, released: Mapping[str, Any], diagnostics: Mapping[str, Any] | None) -> None:
        """Write nothing down."""

    def last_stated(self, round_num: int) -> Mapping[str, Any]:
        """Return no values: none was written down."""
        return {}

    def complete(
        self, round_num: int, released: Mapping[str, Any], diagnostics: Mapping[str, Any]
    ) -> None:
        """Write nothing down."""

    def seal(self) -> None:
        """Record nothing: there is no file."""

    def close(self) -> None:
        """Close the ledger."""
        self.ledger.close()


class RunFolder:
    """One run on disk, by `create`, `of_plan` or `open`; one process at a time holds the ledger."""

    def __init__(
        self,
        path: Path,
        ledger: Ledger,
        document: Mapping[str, Any],
        keep_last: int | None = None,
    ) -> None:
        """Take over what `create`, `of_plan` and `open` made."""
        self.path, self.ledger, self.document = path, ledger, document
        # Rounds between those that are kept: of single examples those that are evaluated are.
        central = bool(document) and document["plan"]["unit"] != "user"
        self._every = int(document["experiment"]["eval_every"]) if central else 1
        self.store = CheckpointStore(
            path / "checkpoints", keep_last=keep_last, keep_every=10 * self._every
        )
        self._begun_here = False  # by `of_plan`: whose first state is no resumed one
        #: Called with each line of rounds.jsonl that is written, and with its diagnostics.
        self.on_line: Callable[[Mapping[str, Any], Mapping[str, Any] | None], None] | None = None

    @property
    def is_hardened(self) -> bool:
        """Whether from its first line on it is a secure run of whole sums and whole noise."""
        return {**self.ledger.extra, **self.document}.get("hardened") is True

    @classmethod
    def create(
        cls,
        path: Path,
        components: Components,
        document: Mapping[str, Any],
        *,
        begun: Start,
        files: Mapping[str, bytes],
        secret: bytes | None = None,
        keep_last: int | None = 10,
        anchor: str | os.PathLike[str] | None = None,
    ) -> RunFolder:
        """Start a run in a folder that does not hold one yet.

        Args:
            path: The folder; made if missing.
            components: What is run.
            document: The content of its experiment.json (`fedpriv.runs.document.make_document`).
            begun: The params before the first round.
            files: The task's files by name (`read_task_files`).
            secret: What keys the digests of a secure run's data; None in simulation.
            keep_last: Newest checkpoints to keep besides every tenth; None keeps all.
            anchor: A file outside the folder where the ledger's lines are marked; None for none.

        Raises:
            ValueError: If the folder already holds a run or what is left of one.
        """
        if (path / DOCUMENT).exists():
            raise ValueError(
                f"{path} already holds a run; give --resume {path} to continue it, or another --out"
            )
        path.mkdir(parents=True, exist_ok=True)
        refuse_links(path)
        _refuse_remains(path, DOCUMENT)
        if secret is not None and document["corpus"].get("data_sha256") is not None:
            write_secret(path / "data.key", secret)
        # The ledger first: with it but without experiment.json there is no run to resume.
        extra = {"experiment": document["name"], SEAL: document_sha256(document)}
        if secret is None:
            extra[NOISE] = noise_digest(experiment_of(components), document)
        ledger = Ledger.create(
            path / LEDGER,
            plan=components.plan,
            mode=document["mode"],
            extra=extra,
            anchor=anchor,
        )
        for name, content in files.items():  # each in one step
            part = path / f".{name}.part"
            part.write_bytes(content)
            part.replace(path / name)
        if "sha256" in begun.facts:
            write_tensors(path / START_FILE, begun.params, {"format": "fedpriv-start"})
        write_json(path / DOCUMENT, document)
        return cls(path, ledger, document, keep_last)

    @classmethod
    def of_plan(
        cls,
        path: Path,
        plan: AnyPlan,
        *,
        mode: str,
        extra: Mapping[str, Any] | None = None,
        anchor: str | os.PathLike[str] | None = None,
    ) -> RunFolder:
        """Start or continue the folder of a custom training loop, which no experiment describes.

        It has the ledger, the checkpoints and the resume state of any other run; `fedpriv verify`
        checks it as far as it goes.

        Args:
            path: The folder; made if missing. One that holds a ledger is continued.
            plan: The plan.
            mode: "simulation" or "secure".
            extra: Further facts for the first line of a new ledger; of a simulation `NOISE`.
            anchor: A file outside the folder where the ledger's lines are marked; None for none.

        Raises:
            ValueError: If the ledger that is there does not verify, is of another plan, or is not
                as far as its anchor; or if there is none, but other files of a run.
        """
        path.mkdir(parents=True, exist_ok=True)
        refuse_links(path)
        file = path / LEDGER
        begun_here = not file.exists()
        if begun_here:
            _refuse_remains(path, LEDGER)
            extra = {**(extra or {}), "hardened": mode == "secure" and plan.is_exact}
            ledger = Ledger.create(file, plan, mode=mode, extra=extra, anchor=anchor)
        else:
            ledger = Ledger.open(file, anchor=anchor)
            if ledger.plan.to_json() != plan.to_json() or ledger.mode != mode:
                ledger.close()
                raise ValueError(
                    f"{file} is the ledger of another plan or mode; give the one it was started "
                    "with, or another folder"
                )
        made = cls(path, ledger, {})
        made._begun_here = begun_here
        return made

    @classmethod
    def open(
        cls, path: Path, *, keep_last: int | None = 10, anchor: str | os.PathLike[str] | None = None
    ) -> RunFolder:
        """Open a run to continue it; its ledger is verified, and nothing else changed yet.

        Raises:
            ValueError: If there is no run, or its ledger does not verify.
        """
        document = read_document(path)
        ledger = Ledger.open(path / LEDGER, anchor=anchor)
        return cls(path, ledger, document, keep_last)

    def check_data(self, task: Any) -> None:
        """Compare a task's data with those the run was started with, where those were known.

        What it keeps frozen in its model is compared too.

        Raises:
            ValueError: If they differ, or cannot be compared any more.
        """
        frozen = read_frozen_bytes(read_task_files(task))
        corpus = self.document["corpus"]
        check_frozen(corpus.get("frozen", {}), frozen, str(self.path))
        if corpus.get("published") != (now := task.describe().to_json().get("published")):
            raise ValueError(
                f"the published weights of the task are not those that {self.path} was started "
                f"with ({now} instead of {corpus.get('published')}); give it those files, or start "
                "a new run in another folder"
            )
        sealed = self.document["corpus"].get("data_sha256")
        secure = sealed is not None and self.document["mode"] == "secure"
        secret = read_secret(self.path / "data.key") if secure else None
        check_data_digests(task, sealed, secret, str(self.path))

    def resume(
        self,
        first: ArrayState,
        decided: Callable[[Mapping[str, float]], Mapping[str, float]] = lambda numbers: {},
    ) -> ArrayState:
        """Return the state to continue from, repairing what a kill left between two writes.

        A run that `of_plan` has begun is at its beginning, and counts as not resumed: its first
        charge makes the keys of its noise again, whatever lies in the folder.

        Args:
            first: The state before round 1, also the template of the saved one.
            decided: What the method says of a state's numbers.

        Raises:
            ValueError: If the state is newer than the ledger (an older ledger was put back), or
                gone although rounds were released.
        """
        for name in ("rounds.jsonl", "diagnostics.jsonl"):
            json_lines.cut_torn_line(self.path / name)
        file = self.path / "state.safetensors"
        if not file.exists():
            if self.ledger.state.releases:
                raise ValueError(
                    f"{file} is gone, but rounds were released: restore it, or start a new run "
                    "(the checkpoints that were released can still be exported)"
                )
            if not self._begun_here:
                self.ledger.resume()
            return first
        of_released, of_rest = first.save()
        rest, metadata = load_state(file, template=of_rest)
        round_num, attempt = int(metadata["round_num"]), int(metadata["attempt"])
        head = metadata["ledger_head"]
        if not (self.ledger.reached(round_num, attempt) and self.ledger.knows(head)):
            raise ValueError(
                f"{file} is of round {round_num}, which the ledger never charged: the ledger "
                "is older than the state, or another run's; restore the one that belongs to it"
            )
        released, _ = self.store.load(round_num, template=of_released)
        release, digest = self.ledger.release_of(round_num, attempt), self.store.digest(round_num)
        if release is not None and release.digest != digest:
            raise ValueError(
                f"the checkpoint of round {round_num} in {self.path} is not what the run released, "
                "by its ledger's digest; restore it from a copy"
            )
        self.ledger.resume()
        numbers = {name: float(metadata[name]) for name in first.numbers}
        state = first.load(round_num, released, rest, numbers)
        if release is None:
            self.ledger.release(round_num, attempt, digest)
        kept = {line["round_num"] for line in json_lines.read(self.path / "rounds.jsonl")}
        if round_num not in kept and (kept or self.document):  # own loops need not write any
            number = self.ledger.state.charged_before[-1]
            measures = figures_of(read_measures(self.document)) if self.document else ()
            line = Released(  # killed before it was written down
                round_num=round_num,
                attempt=attempt,
                **round_values(self.ledger.plan, number),
                measured=measured(measures, None),
                update_norm=numbers.get("update_norm"),
                decided=decided(numbers),
            )
            json_lines.append(self.path / "rounds.jsonl", self._marked(record_to_json(line)))
        return state

    def keep(self, state: ArrayState) -> None:
        """Write a released checkpoint, then record it in the ledger; rounds not due are skipped.

        The checkpoint holds what is released; the state refers to it and adds what only the next
        round needs. The older checkpoints go last, so that a kill at any point leaves a state
        and the checkpoint it refers to.

        Args:
            state: After the round, made of the answers charged last.
        """
        if not self._due(state.round_num):
            return
        (released, rest), attempt = state.save(), self.ledger.last_attempt
        metadata = {"round_num": str(state.round_num), "ledger_head": self.ledger.head}
        self.store.save(state.round_num, released, metadata)
        more = {"attempt": str(attempt)} | {n: repr(float(x)) for n, x in state.numbers.items()}
        save_state(self.path / "state.safetensors", rest, metadata | more)
        self.ledger.release(state.round_num, attempt, self.store.digest(state.round_num))
        self.store.prune()

    def record(self, released: Mapping[str, Any], diagnostics: Mapping[str, Any] | None) -> None:
        """Append a round's released values, and in simulation its diagnostics, where it is due."""
        if not self._due(int(released["round_num"])):
            return
        line = self._marked(released)
        json_lines.append(self.path / "rounds.jsonl", line)
        if diagnostics is not None:
            line_of_private = {**diagnostics, "covered_by_epsilon": False}
            json_lines.append(self.path / "diagnostics.jsonl", line_of_private, mode=0o600)
        if self.on_line is not None:
            self.on_line(line, diagnostics)

    def last_stated(self, round_num: int) -> Mapping[str, Any]:
        """Return the values recorded for the last round; empty if the last line is of another."""
        last = _last_line(self.path / "rounds.jsonl")
        return last if last.get("round_num") == round_num else {}

    def complete(
        self, round_num: int, released: Mapping[str, Any], diagnostics: Mapping[str, Any]
    ) -> None:
        """Write further values into the lines of the last round; what is there is replaced.

        Args:
            round_num: The round; where its lines are not the last, nothing is written.
            released: Values by name, for `rounds.jsonl`.
            diagnostics: The same for `diagnostics.jsonl`.
        """
        last: dict[str, Mapping[str, Any]] = {}
        for name, values in (("rounds.jsonl", released), ("diagnostics.jsonl", diagnostics)):
            line = _last_line(self.path / name)
            if line.get("round_num") == round_num:
                last[name] = line
                if values:
                    last[name] = self._marked({**line, **values})
                    json_lines.replace_last(self.path / name, last[name])
        if self.on_line is not None and "rounds.jsonl" in last:
            self.on_line(last["rounds.jsonl"], last.get("diagnostics.jsonl"))

    def _marked(self, line: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a line with what its ε does not cover, where it states one that has gaps."""
        if line.get("epsilon") is None:
            return line
        missing = gaps_of_rounds(self.document, self.ledger.extra, self.ledger.mode)
        return {**line, KEY: list(missing)} if missing else line

    def _due(self, round_num: int) -> bool:
        """Return whether the round charged last is kept: each `every`-th, and the run's last."""
        if round_num % self._every == 0:
            return True
        if self.ledger.plan.planned_rounds is None:
            return True  # only the next charge can say whether there is a next round
        return not self.ledger.pays_for_more

    def note_backend(self, description: Mapping[str, Any], *, first_round: int) -> None:
        """Append which backend runs from a round on: a resumed run may go on with another."""
        json_lines.append(self.path / "backends.jsonl", {"first_round": first_round, **description})

    def summarise(self, summary: Mapping[str, Any]) -> None:
        """Write the finished run's figures, and seal its files."""
        write_json(self.path / "summary.json", summary)
        self.seal()

    def seal(self) -> None:
        """Record the digests of a finished run's files in its ledger, once all are written."""
        here = (name for name in _SEALED if (self.path / name).is_file())
        self.ledger.seal({name: file_sha256(self.path / name) for name in here})

    def close(self) -> None:
        """Close the ledger and release its lock."""
        self.ledger.close()


def _last_line(path: Path) -> dict[str, Any]:
    """Return the last object of a file, empty where there is none."""
    with suppress(ValueError):
        return json_lines.read_last(path)
    return {}


def _refuse_remains(path: Path, missing: str) -> None:
    """Refuse to start a run among another one's files: what that has spent would be forgotten.

    Raises:
        ValueError: If there are any.
    """
    there = [name for name in _AFTER_THE_LEDGER if (path / name).exists()]
    if there:
        raise ValueError(
            f"{path} holds {there[0]} of a run but no {missing}, and what that run has spent is "
            f"unknown; restore {missing} (and ledger.jsonl), or give another folder"
        )


def read_task_files(task: BaseTask) -> Mapping[str, bytes]:
    """Return the files that a task brings, by name, such as a vocabulary; empty for none.

    Raises:
        ValueError: If a name is no file name or another file's, or a content is not bytes.
    """
    files = task.files()
    for name, content in files.items():
        if not _FILE_NAME.fullmatch(name) or name in _RESERVED_FILES:
            raise ValueError(
                f"the task's file {name!r} cannot lie in a run folder; give it a plain name of its "
                "own, such as 'words.json'"
            )
        given: Any = content
        if not isinstance(given, bytes):
            raise ValueError(
                f"the task's file {name!r} is a {type(content).__name__}; give its bytes, such as "
                "json.dumps(...).encode()"
            )
    return files
