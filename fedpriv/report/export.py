"""A model folder that is complete by itself: params, vocabulary, and what was guaranteed.

An export holds `model.safetensors`, `README.md` and the files that the task brought, such as a tag
model's `vocabulary.json`. Nothing in it is executed when it is loaded.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedpriv.checkpoints.aggregates import RULES
from fedpriv.checkpoints.store import CheckpointStore
from fedpriv.checkpoints.tensor_files import (
    AGGREGATE,
    FROZEN,
    PUBLIC_MODELS,
    SELECTED,
    read_frozen,
    read_sealed_model,
    read_tensors,
    write_tensors,
)
from fedpriv.checkpoints.vocabulary import VOCABULARY, Vocabulary, read_vocabulary, vocabulary_bytes
from fedpriv.hashes import file_sha256
from fedpriv.privacy.statement.coverage import TRAINED
from fedpriv.privacy.statement.statement import describe_candidate, run_statement
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.report import theme
from fedpriv.report.head import badges, privacy_terms
from fedpriv.report.run_record import RunRecord, read_run, spent
from fedpriv.report.wording import epsilon, figure

MODEL = "model.safetensors"
NO_WORDS = (
    "only a tag model knows which words its inputs are, and can read a text (fedpriv.load_params "
    "puts the params of any other into its module)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TagModel:
    """A trained tag model with its vocabulary.

    Attributes:
        kernel: float `(num_rows, num_tags)`, a row for each word and for hashed pairs, if any.
        bias: float `(num_tags,)`.
        vocabulary: What rows and columns mean.
        encode: From texts to rows float32 `(texts, width)`, by the encoder that the vocabulary
            names; None for words.
    """

    kernel: np.ndarray
    bias: np.ndarray
    vocabulary: Vocabulary
    encode: Callable[[Sequence[str]], np.ndarray] | None = None

    def rank(
        self, tokens: Sequence[str], top: int = 5, *, title: Sequence[str] = ()
    ) -> list[tuple[str, float]]:
        """Return the likeliest tags with their probabilities, likeliest first.

        Args:
            tokens: Of the text, as `tff_tokens` makes them. A model of an encoder's rows of titles
                takes it for a title, unless there is one.
            top: How many tags.
            title: Tokens of the title of the text's question.

        Raises:
            ValueError: If `top` is below 1, there is no title where the model has rows of both, or
                its encoder is not given.
        """
        if top < 1:
            raise ValueError(f"top is {top}; ask for at least one tag")
        rows, values = self._inputs(tokens, title)
        logits = values @ self.kernel[rows].astype(np.float64) + self.bias
        odds = np.exp(logits - logits.max())
        shares = odds / odds.sum()
        order = np.argsort(-shares, kind="stable")[:top]
        return [(self.vocabulary.tags[i], float(shares[i])) for i in order]

    def _inputs(
        self, tokens: Sequence[str], title: Sequence[str]
    ) -> tuple[np.ndarray | slice, np.ndarray]:
        """Return the kernel's rows that a text has, and their inputs."""
        described = self.vocabulary.encoder
        if described is None or self.encode is None:
            return self.vocabulary.features([*tokens, *title])
        if len(described.texts) > 1 and not title:
            raise ValueError("the model has rows of a sentence and of its title: give --title too")
        of = {"sentence": tokens, "title": title or tokens}
        rows = self.encode([" ".join(of[kind]) for kind in described.texts])
        values = rows.reshape(-1).astype(np.float64)
        return slice(None), values / (float(np.linalg.norm(values)) or 1.0)


def released_params(
    run: RunRecord, round_num: int | None = None, *, last_iterate: bool = False
) -> tuple[int, dict[str, np.ndarray]]:
    """Return the round and the params of the model that a run returns, and what was frozen in it.

    Args:
        run: The run.
        round_num: Of which round's checkpoint; None for the model that was selected on public
            examples where there is one, else for the newest.
        last_iterate: The params that training went on from, whatever was selected, and even where
            the checkpoint holds an average over rounds, which is taken otherwise.

    Raises:
        ValueError: If the run has no such checkpoint, or the model is not the one that its ledger
            names.
    """
    selected, state = run.selection, run.state
    frozen = read_frozen(run.folder) if FROZEN in run.files else {}
    if selected and round_num is None and not last_iterate:
        params = read_sealed_model(run.folder / SELECTED, selected.get("sha256"))
        _check_digest(run.folder / SELECTED, state.sealed.get(SELECTED))
        return run.rounds_done, {**frozen, **params}
    store = CheckpointStore(run.folder / "checkpoints")
    released = {release.round_num: release.digest for release in state.releases}
    if round_num is None:  # a run under way may have written a newer one, not released yet
        kept = [number for number in store.rounds() if number in released]
        if not kept:
            raise ValueError(f"{run.folder} has no checkpoint yet")
        round_num = kept[-1]
    chosen = round_num
    tensors, _ = store.load(chosen)
    _check_digest(store.path(chosen), released.get(chosen))
    average = _aggregate(tensors)
    iterate = {n: t for n, t in tensors.items() if "/" not in n}
    trained = average if average and not last_iterate else iterate
    return chosen, {**frozen, **trained}


def _check_digest(file: Path, digest: str | None) -> None:
    """Raise `ValueError` unless a file is the one that a line of the ledger names."""
    if digest is None:
        raise ValueError(
            f"no line of the ledger names {file}; if the run was interrupted at its end, resume it"
        )
    if file_sha256(file) != digest:
        raise ValueError(f"{file} is not the file that the ledger names; restore it")


def _aggregate(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {n.removeprefix(AGGREGATE): t for n, t in tensors.items() if n.startswith(AGGREGATE)}


def which_model(
    run: RunRecord, round_num: int, *, last_iterate: bool = False, returned: bool = False
) -> str:
    """Return which of a run's models `released_params` gives, as "the model after round 4".

    Args:
        run: The run.
        round_num: After which round.
        last_iterate: Whether the params that training went on from were asked for.
        returned: Whether the one that the run returns was asked for.
    """
    after = f"after {run.words.turn} {round_num}"
    if not returned or not run.selection:
        store = CheckpointStore(run.folder / "checkpoints")
        if round_num not in store.rounds() or not _aggregate(store.load(round_num)[0]):
            return f"the model {after}"
        if last_iterate:
            return f"the last iterate {after}"
        rule = run.options.get("aggregate", "none")
        # A derived experiment may have an aggregate that no option names.
        return f"the aggregate {after}" if rule == "none" else f"the '{rule}' aggregate {after}"
    name = describe_candidate(run.selection["selected"])
    if run.selection["selected"] not in PUBLIC_MODELS:
        judged = "judged" in run.selection
        return f"{name}, selected on public examples" if judged else f"{name}, not judged"
    found = (
        f"{name}, selected on public examples over what private training released: it is made of "
        "public examples alone"
    )
    return f"{found}. {run.spent_all_the_same}" if run.spent_all_the_same else found


def has_vocabulary(run: RunRecord) -> bool:
    """Return whether a run's model is a tag model, whose rows and columns are words and tags."""
    return VOCABULARY in run.files or bool(run.corpus.get("num_tags"))


def export_run(
    directory: str | Path,
    destination: str | Path,
    *,
    round_num: int | None = None,
    last_iterate: bool = False,
    vocabulary: Vocabulary | None = None,
) -> int:
    """Write a run's model to a new folder, whole or not at all. Returns the round exported.

    Args:
        directory: The run folder.
        destination: The folder to make; an empty one is taken too.
        round_num: Which checkpoint; None for the model that the run returns.
        last_iterate: See `released_params`.
        vocabulary: Needed only for a tag model whose run folder holds none.

    Raises:
        ValueError: If the folder does not verify (`fedpriv.privacy.statement.verify`), the
            destination holds something, the checkpoint does not exist, or a tag model's vocabulary
            is missing or of another size than the model.
    """
    run, destination = read_run(directory), Path(destination)
    wrong = [check for check in verify_run(directory).checks if not check.ok]
    if wrong:
        said = "; ".join(f"{check.name}: {check.text}" for check in wrong)
        raise ValueError(f"{directory} does not verify, so no model of it is exported: {said}")
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise ValueError(f"{destination} is not an empty folder; export to a new one")
    chosen, params = released_params(run, round_num, last_iterate=last_iterate)
    if vocabulary is None and has_vocabulary(run):
        vocabulary = read_vocabulary(run.folder / VOCABULARY)
    if vocabulary is not None:
        check_model(params, vocabulary)
    destination.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
    try:
        metadata = {"format": "fedpriv-export", "version": "1", "round_num": str(chosen)}
        metadata[TRAINED] = json.dumps(run.trained().to_json())
        write_tensors(building / MODEL, params, metadata)
        if vocabulary is not None:
            (building / VOCABULARY).write_bytes(vocabulary_bytes(vocabulary))
        files = [name for name in run.files if name not in (VOCABULARY, FROZEN)]
        for name in files:
            shutil.copyfile(run.folder / name, building / name)
        shapes = {n: tuple(t.shape) for n, t in params.items()}
        frozen = sorted(read_frozen(run.folder)) if FROZEN in run.files else []
        card = model_card(
            run,
            chosen,
            shapes,
            vocabulary=vocabulary,
            files=files,
            frozen=frozen,
            last_iterate=last_iterate,
            returned=round_num is None and not last_iterate,
        )
        (building / "README.md").write_text(card, encoding="utf-8")
        # A folder made for building is private to its owner; the result is an ordinary one.
        building.chmod(0o755)
        os.replace(building, destination)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return chosen


def load_model(path: str | Path, vocabulary: Vocabulary | None = None) -> TagModel:
    """Return the tag model of an export or of a run folder.

    Args:
        path: The folder.
        vocabulary: Needed only where the folder holds none.

    Raises:
        ValueError: If it is neither, or model and vocabulary do not belong together.
    """
    path = Path(path)
    if (path / MODEL).is_file():
        params, _ = read_tensors(path / MODEL)
    elif (path / "experiment.json").is_file():
        _, params = released_params(read_run(path))
    else:
        raise ValueError(
            f"{path} is neither an export ({MODEL}) nor a run folder (experiment.json)"
        )
    if vocabulary is None:
        if not (path / VOCABULARY).is_file():
            raise ValueError(
                f"{path} has no {VOCABULARY}: {NO_WORDS}, unless it is given with a vocabulary"
            )
        vocabulary = read_vocabulary(path / VOCABULARY)
    check_model(params, vocabulary)
    bias = params.get("bias", np.zeros(len(vocabulary.tags), np.float32))
    return TagModel(kernel=params["kernel"], bias=bias, vocabulary=vocabulary)


def check_model(params: Mapping[str, np.ndarray], vocabulary: Vocabulary) -> None:
    """Raise `ValueError` unless the params are a tag model of the vocabulary's size."""
    sizes: dict[str, tuple[int, ...]] = {
        "kernel": (vocabulary.num_rows, len(vocabulary.tags)),
        **({} if vocabulary.encoder is not None else {"bias": (len(vocabulary.tags),)}),
    }
    found = {name: tuple(tensor.shape) for name, tensor in params.items()}
    if found != sizes:
        raise ValueError(f"a tag model of this vocabulary has tensors {sizes}, found {found}")


def model_card(
    run: RunRecord,
    round_num: int,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    vocabulary: Vocabulary | None = None,
    files: Sequence[str] = (),
    frozen: Sequence[str] = (),
    last_iterate: bool = False,
    returned: bool = False,
) -> str:
    """Return the card of the model that a run released after a round, as Markdown.

    Args:
        run: The run.
        round_num: After which round.
        shapes: Of the params, by name.
        vocabulary: Of a tag model, which the folder holds.
        files: Others that the task brought.
        frozen: Which of the params were not trained.
        last_iterate: Whether it is the one that training went on from, not an aggregate.
        returned: Whether it is the one that was selected on public examples.
    """
    statement = run_statement(run)
    spent_by_then = epsilon(spent(run, round_num).value)
    return theme.render(
        "card.md",
        run=run,
        nouns=run.words,
        badges=badges(run, statement),
        which=which_model(run, round_num, last_iterate=last_iterate, returned=returned),
        of_several=of_several(run),
        epsilon=run.coverage.qualified(spent_by_then),
        terms=privacy_terms(run),
        figures=_figures(run, round_num, returned),
        shapes=[(name, str(list(shape))) for name, shape in sorted(shapes.items())],
        frozen=frozen,
        files=files,
        vocabulary=vocabulary,
        sections=statement.sections,
        credits=[run.corpus[key] for key in ("credit", "licence") if run.corpus.get(key)],
    )


def of_several(run: RunRecord) -> str | None:
    """Return a sentence where a run's figures are of several models and this one is the last."""
    rule = run.options.get("aggregate")
    if rule not in RULES:
        return None
    return (
        f"The run's figures are of what its last {run.options.get('aggregate.k')} models answer "
        f"together ({rule}); this model is the last of them, and was not measured alone."
    )


def _figures(run: RunRecord, round_num: int, returned: bool) -> list[tuple[str, str]]:
    """Return the figures measured of the exported model, with those of whom they are."""
    released = next((r for r in run.released if r.get("round_num") == round_num), {})
    diagnosed = next((r for r in run.diagnosed if r.get("round_num") == round_num), {})
    if returned and run.selection:
        released = diagnosed = run.summary
    nouns = run.words
    measured = [
        (m, f"{nouns.public}s ({nouns.publicity})", released.get(m.released_name))
        for m in run.figures
    ]
    measured += [
        (m, f"{nouns.tested}s (not covered by ε)", diagnosed.get(m.name)) for m in run.figures
    ]
    return [
        (f"{measure.label}, {whom}", figure(measure, value))
        for measure, whom, value in measured
        if value is not None
    ]
