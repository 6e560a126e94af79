"""Initial params of training: the task's own params, a model of public examples, or a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fedpriv.checkpoints.tensor_files import AGGREGATE, START_FILE, params_sha256
from fedpriv.experiments.options import Option, normalize
from fedpriv.hashes import file_sha256
from fedpriv.parts import Part, PositiveFloat, PositiveInt, Share
from fedpriv.privacy.statement.coverage import TRAINED, TrainedBefore, trained_before
from fedpriv.privacy.statement.sealed import LEDGER, read_sealed
from fedpriv.rng import Key
from fedpriv.tree import Params

if TYPE_CHECKING:
    from fedpriv.training.public_learning import Choice, Choices


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Params before the first round, and where they came from.

    Attributes:
        params: float32 tensors.
        facts: For the run folder: "kind", and of other than the task's own "sha256" and more.
    """

    params: Params = field(repr=False)
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicOnly:
    """Result of training a task's model on public examples alone.

    Attributes:
        choices: Settings chosen on public examples held out.
        model: The public-only row, float32: trained by the settings with the best figure, as they
            are.
        start: What private training starts from: by the settings with the lowest loss, drawn back.
        num_examples: Public examples that both were trained on.
    """

    choices: Choices
    model: Params = field(repr=False)
    start: Params = field(repr=False)
    num_examples: int


def public_only(task: Any, key: Key, rates: tuple[float, ...] | None = None) -> PublicOnly | None:
    """Return what public examples alone make of a task's model; None where it has none.

    Args:
        task: Any.
        key: Orders the examples, and draws the initial params of a model that is drawn.
        rates: Learning rates to try; None for the learner's own.

    Raises:
        ValueError: If no rate gives a finite loss, or the learner measures none.
    """
    from fedpriv.training.public_learning import choose, learn

    measures = task.measures
    trial = task.public_learner(key, choosing=True)
    whole = task.public_learner(key, choosing=False)
    if trial is None or whole is None:
        return None
    found = choose(trial, measures[0] if measures else None, rates=rates)
    return PublicOnly(
        choices=found,
        model=learn(whole, found.by_figure),
        start=learn(whole, found.by_loss),
        num_examples=whole.num_examples,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _AnyStart(Part):
    """Options of every start.

    Attributes:
        brought_weights: Let a secure run use weights that the task's code brings, whatever they
            were trained on.
    """

    brought_weights: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh(_AnyStart):
    """The task's own params."""

    kind: ClassVar[str] = "fresh"

    def make(self, task: Any, key: Key, found: PublicOnly | None = None) -> Start:
        """Return the start; nothing of what was found in public goes into it."""
        return Start(params=task.init_params(key), facts={"kind": "fresh"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FromPublic(_AnyStart):
    """A model of public examples; what is not given is chosen on public examples held out.

    Attributes:
        learning_rate: Of training on public examples; none to choose it.
        passes: Passes over the public examples; none to choose.
        factor: What is kept of the public model; none to choose.
    """

    kind: ClassVar[str] = "public"

    learning_rate: PositiveFloat | None = None
    passes: PositiveInt | None = None
    factor: Share | None = None

    def make(self, task: Any, key: Key, found: PublicOnly | None = None) -> Start:
        """Return the start.

        Args:
            task: Learns in public.
            key: As of `public_only`.
            found: What `public_only` returned of them, to save a second search.

        Raises:
            ValueError: If the task has no public examples to learn from, or as `public_only`.
        """
        from fedpriv.training.public_learning import learn

        if self.learning_rate is not None:
            found = public_only(task, key, (self.learning_rate,))
        elif found is None:
            found = public_only(task, key)
        if found is None:
            raise ValueError(
                "start 'public': the task has no public examples to learn from; give it some "
                "(public_train of a ModuleTask, public and public_measure of a CentralTask; a "
                "corpus that does not know who asked its questions has none, unless it is imported "
                "again or public-text is all-posts), or set start fresh"
            )
        params, choice = found.start, self.settings(found)
        if choice != found.choices.by_loss:
            params = learn(task.public_learner(key, choosing=False), choice)
        return Start(
            params=params,
            facts={
                "kind": "public",
                "sha256": params_sha256(params),
                "num_public_examples": found.num_examples,
                **{
                    name: value
                    for name, value in asdict(choice).items()
                    if name not in ("loss", "figure") or choice == found.choices.by_loss
                },
                "settings_tried": found.choices.tried,
            },
        )

    def settings(self, found: PublicOnly) -> Choice:
        """Return what the start is trained with: what was given, and the rest as found."""
        choice = found.choices.by_loss
        return replace(
            choice,
            passes=self.passes or choice.passes,
            factor=choice.factor if self.factor is None else self.factor,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FromFile(_AnyStart):
    """Params of a safetensors file.

    Attributes:
        file: A safetensors file with the model's tensors; for Flower an absolute path.
        which: Of a checkpoint that holds both: the last params, or their running average.
        without_privacy: Let a secure run go on from a model that was trained without privacy.
    """

    kind: ClassVar[str] = "file"

    file: str | None = None
    which: Literal["last", "ema"] = "last"
    without_privacy: bool = False

    def make(self, task: Any, key: Key, found: PublicOnly | None = None) -> Start:
        """Return the start, with what is known of what it was trained on.

        Raises:
            ValueError: If there is no such file, its tensors are not the model's, or it lies in a
                run folder whose files do not belong together.
        """
        from fedpriv.checkpoints.tensor_files import check_tensors, read_tensors

        if self.file is None:
            raise ValueError("start 'file' needs start-file: a safetensors file of the model")
        path = Path(self.file)
        if not path.is_file():
            raise ValueError(f"start-file {str(path)!r}: there is no such file")
        held, metadata = read_tensors(path)
        tensors = _which(held, self.which, path)
        check_tensors(path, tensors, task.init_params(key))
        return Start(
            params=tensors,
            facts={
                "kind": "file",
                "sha256": params_sha256(tensors),
                "file": path.name,
                TRAINED: _trained(path.resolve(), metadata),
            },
        )


def _trained(path: Path, metadata: Mapping[str, str]) -> Mapping[str, Any] | None:
    """Return what a file was trained on before: by the ledger of the run folder that it lies in.

    An export says itself what its run's ledger said, and so does the model that a run returned. Of
    all else, and of a checkpoint that its folder's run never released, nothing is known.
    """
    folder = path.parent.parent
    if path.parent.name == "checkpoints" and (folder / LEDGER).is_file():
        run = read_sealed(folder)
        released = {release.digest for release in run.state.releases}
        return run.trained().to_json() if file_sha256(path) in released else None
    if (path.parent / LEDGER).is_file():
        run = read_sealed(path.parent)
        before = trained_before(run.start) if path.name == START_FILE else run.trained()
        return None if before is None else before.to_json()
    try:
        claimed = TrainedBefore.read(json.loads(metadata.get(TRAINED, "null")))
    except ValueError:
        return None
    return None if claimed is None else replace(claimed, claimed=True).to_json()


def _which(tensors: Params, which: str, path: Path) -> Params:
    """Return the last params of a checkpoint, or their average, under the params' own names.

    Raises:
        ValueError: If the file has no average.
    """
    averaged = {n.removeprefix(AGGREGATE): a for n, a in tensors.items() if n.startswith(AGGREGATE)}
    if which == "last":
        return {name: array for name, array in tensors.items() if not name.startswith(AGGREGATE)}
    if not averaged:
        raise ValueError(
            f"start-which ema: {path} has no running average; train it with aggregate ema, or set "
            "start-which last"
        )
    return averaged


StartFrom = Fresh | FromPublic | FromFile
_KINDS = tuple(part.kind for part in (Fresh, FromPublic, FromFile))


def name_start_file(options: Mapping[str, Option]) -> dict[str, Option]:
    """Return options in which a start that is the path of a file is of kind "file".

    >>> name_start_file({"start": "model.safetensors", "rounds": 3})
    {'start': 'file', 'start.file': 'model.safetensors', 'rounds': 3}

    Raises:
        ValueError: If a start is neither a kind, nor a file that there is or whose name ends so.
    """
    found: dict[str, Option] = {}
    for name, value in options.items():
        if normalize(name.removesuffix(".kind")) != "start" or value in (None, *_KINDS):
            found[name] = value
            continue
        path = Path(str(value))
        if path.suffix != ".safetensors" and not path.is_file():  # a node has not the server's
            raise ValueError(
                f"start {str(value)!r} is neither {' nor '.join(_KINDS)} nor a file that there is; "
                "give a safetensors file of the model, or one of these words"
            )
        if twice := [other for other in options if normalize(other) == "start_file"]:
            raise ValueError(f"start {str(value)!r} and {twice[0]} both name a file; leave one out")
        found |= {name: FromFile.kind, "start.file": str(value)}
    return found
