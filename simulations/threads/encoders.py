"""Gain of a pretrained encoder under user-level DP: kinds of inputs on one split.

`tags-encoders`: softmax regression on plain words, on rows of a frozen encoder, on their principal
components among public titles, and on two controls that know nothing of other text: the same
encoder with random weights, and word vectors of public users' text alone. Each kind has its own
public-only, private and non-private rows, and its own gap.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedpriv.checkpoints.tensor_files import params_sha256
from fedpriv.datasets.encoders import (
    WEIGHTS,
    Encoder,
    EncoderFiles,
    add_encoder,
    find_encoder,
    transformers_library,
)
from fedpriv.datasets.importers.locate import resolve_corpus
from fedpriv.datasets.importers.stackoverflow import split_words
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.embeddings import (
    Embeddings,
    EncodedTexts,
    make_embeddings,
    reduce_encoder,
)
from fedpriv.datasets.stackexchange.splits import NUM_FOLDS, Split
from fedpriv.datasets.stackexchange.tag_view import TagView
from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.experiments.options import Option
from fedpriv.experiments.ready_made.tags import encoder_tags
from fedpriv.experiments.tasks import TagPredictionTask
from fedpriv.parts import PositiveInt
from fedpriv.report.charts import Reference, tradeoff_plot
from fedpriv.rng import Key
from simulations.evaluation.evaluate import (
    Estimate,
    Evaluation,
    ModelFigures,
    differences,
    evaluate,
)
from simulations.evaluation.held_out import MAJORITY, Fold
from simulations.evaluation.table import percent
from simulations.reproduction import items
from simulations.reproduction.study import publish, render, table, write
from simulations.threads.methods import BY_SIZE, PLAIN_WORDS, Method
from simulations.threads.page import differences_table, epsilon_words, point
from simulations.threads.study import CENTRAL, PUBLIC, Study, check_options, model_name

MINILM = "all-minilm-l6-v2-10f28a0f1270785b"
PRIVATE, RETURNED = "private", "returned"
WORDS, ENCODED = BY_SIZE["adadps-tags"], BY_SIZE["encoder-tags"]
DIMENSIONS = 384  # of word vectors: as many as the encoder has
COMPONENTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """One kind of inputs of a model.

    Attributes:
        label: In tables.
        features: Options of every method.
        method: Private training on them.
        control: Whether it is there to explain the others: one seed of it is trained, and what a
            run returns is not measured.
    """

    label: str
    features: Mapping[str, Option]
    method: Method
    control: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicVectorsTask(TagPredictionTask):
    """Tag prediction on titles as sums of word vectors that public users' text alone made.

    Latent semantic analysis: right singular vectors of the (sentences x words) matrix of tf-idf
    weights over the public training threads; a title is the sum of its words' vectors, each times
    the word's idf, scaled to unit norm.

    Guarantee: rows are a function of one title and of public users' text.

    Attributes:
        dimensions: Of a word vector.
    """

    dimensions: PositiveInt = DIMENSIONS

    def encoded(self, corpus: Corpus, view: TagView) -> tuple[EncodedTexts, Mapping[str, str]]:
        """Return the rows of all titles, and the digest of the word vectors.

        Raises:
            ValueError: If the corpus keeps no titles, or has fewer public examples than dimensions.
        """
        titles = corpus.texts("title")
        if titles is None:
            raise ValueError(f"corpus {corpus.name!r} keeps no titles to make rows of")
        vectors = _word_vectors(view, self.dimensions)
        index = {word: number for number, word in enumerate(view.words)}
        rows = np.zeros((len(titles), self.dimensions), np.float32)
        for row, title in zip(rows, titles, strict=True):
            known = [index[word] for word in split_words(title) if word in index]
            row += vectors[known].sum(axis=0)
        digest = params_sha256({"vectors": vectors})
        made = Embeddings(encoder="public word vectors", sha256=digest, rows={"title": rows})
        return EncodedTexts(embeddings=made), {"word vectors": digest}


def _word_vectors(view: TagView, dimensions: int) -> np.ndarray:
    """Return vectors of a view's words times their idf, float32 `(words, dimensions)`."""
    from scipy import sparse
    from scipy.sparse.linalg import svds

    public = view.columns.take(view.public_rows("train"))
    counts = public.features("unit-norm").astype(np.float64)
    if len(public) <= dimensions:
        raise ValueError(
            f"{len(public)} public examples make at most {len(public) - 1} dimensions, not "
            f"{dimensions}; give fewer"
        )
    rarity = np.log(
        len(public) / np.maximum(np.bincount(public.indices, minlength=len(view.words)), 1)
    )
    weighted = sparse.csr_array(counts.multiply(rarity))
    # A fixed beginning, so that the vectors are the same in every run.
    begun = np.ones(min(len(public), len(view.words)))
    _, _, right = svds(weighted, k=dimensions, v0=begun)
    return (right.T * rarity[:, None]).astype(np.float32)


def public_vector_tags() -> FederatedExperiment:
    """`encoder-tags` on word vectors of public users' text."""
    return replace(encoder_tags(), name="public-vector-tags", task=PublicVectorsTask())


def add_random_encoder(like: EncoderFiles, seed: int = 0) -> EncoderFiles:
    """Return an encoder of the same architecture and tokenizer, with random weights, added here.

    Weights are those that `transformers` initialises a model with, drawn by this seed.
    """
    import torch
    from safetensors.torch import save_file

    library = transformers_library()
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / f"random-{like.name}"
        shutil.copytree(like.folder, folder)
        settings = library.AutoConfig.from_pretrained(str(like.folder), local_files_only=True)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = library.AutoModel.from_config(settings)
        state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
        save_file(state, str(folder / WEIGHTS))
        return add_encoder(folder)


def kinds_of_inputs(corpus: Corpus, roster: str | None) -> dict[str, Inputs]:
    """Return the kinds that are compared; encoders made here, and their rows, if missing."""
    trained = find_encoder(MINILM)
    drawn = add_random_encoder(trained)
    reduced = reduce_encoder(corpus, Encoder(trained), COMPONENTS, roster=roster)
    for one in (drawn, reduced):
        make_embeddings(corpus, Encoder(one), ("title",))
    vectors = replace(ENCODED, experiment="simulations.threads.encoders:public_vector_tags")
    return {
        "words": Inputs(
            label="words (bag of words)",
            features=PLAIN_WORDS,
            method=WORDS,
        ),
        "titles": Inputs(
            label="encoder, titles",
            features={"encoder": MINILM, "encoder-texts": "title"},
            method=ENCODED,
        ),
        "components": Inputs(
            label=f"encoder, titles, {COMPONENTS} components",
            features={"encoder": reduced.id, "encoder-texts": "title"},
            method=ENCODED,
        ),
        "titles and sentences": Inputs(
            label="encoder, titles and sentences",
            features={"encoder": MINILM, "encoder-texts": "both"},
            method=ENCODED,
        ),
        "random": Inputs(
            label="the same encoder with random weights, titles",
            features={"encoder": drawn.id, "encoder-texts": "title"},
            method=ENCODED,
            control=True,
        ),
        "public vectors": Inputs(
            label="word vectors of public text, titles",
            features={"dimensions": DIMENSIONS},
            method=vectors,
            control=True,
        ),
    }


def reproduce(
    *,
    corpus: str | None = None,
    seeds: int = 3,
    out: Path | None = None,
    plot: Path | None = None,
    roster: str | None = "onstartups-all",
    folds: int = NUM_FOLDS,
    epsilons: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0),
    returned: tuple[float, ...] = (1.0, 2.0),
    only: tuple[str, ...] = (),
) -> None:
    """Train the study and publish its page.

    Args:
        corpus: A prepared corpus, a dump or a name.
        seeds: How many; of controls, and of what a run returns, there is one.
        out: Where the page is written, with what it is of as JSON.
        plot: Accuracy against ε, an SVG.
        roster: Of the corpus; None for its own.
        folds: How many are pooled.
        epsilons: Targets.
        returned: Targets at which the model that a run returns is measured too, but for controls;
            none to leave it.
        only: Kinds of inputs; none for all.

    Raises:
        ValueError: If an option is refused, the encoder is not on this machine, or there is no such
            corpus.
    """
    check_options(folds, seeds, plot)
    found = resolve_corpus(corpus, allow_synthetic=False)
    kinds = kinds_of_inputs(found, roster)
    if unknown := set(only) - set(kinds):
        raise ValueError(f"only {sorted(unknown)[0]!r} is not one of {', '.join(kinds)}")
    kinds = {name: one for name, one in kinds.items() if not only or name in only}

    def study(kind: Inputs, method: str, targets: Sequence[float], times: int) -> Study:
        return Study(
            corpus=found,
            roster=roster,
            splits=tuple(Split(kind="by-thread", fold=number) for number in range(folds)),
            seeds=times,
            epsilons=targets,
            methods={method: replace(kind.method, returned=method == RETURNED)},
            features=kind.features,
        )

    def pooled(own: Sequence[Fold]) -> Evaluation:
        return evaluate(
            own,
            public_only=PUBLIC,
            best_nonprivate=CENTRAL,
            generator=Key.simulation(0).fold("bootstrap").generator(),
        )

    studies = {
        name: study(kind, PRIVATE, epsilons, 1 if kind.control else seeds)
        for name, kind in kinds.items()
    }
    measured = {name: one.folds() for name, one in studies.items()}
    first = next(iter(studies.values()))
    evaluated = {name: pooled(own) for name, own in measured.items()}
    selected = {
        name: pooled(study(kind, RETURNED, returned, 1).folds())
        for name, kind in kinds.items()
        if returned and not kind.control
    }
    compared = differences(
        _together(measured),
        _pairs(kinds, epsilons),
        generator=Key.simulation(0).fold("inputs").generator(),
    )
    words = epsilon_words(first)
    data = next(iter(evaluated.values()))
    private = {model_name(PRIVATE, target): f"ε = {target:g}" for target in epsilons}
    majority = percent(data.models[MAJORITY].values["accuracy"])
    page = render(
        "threads/encoders.md.jinja",
        dense_is_easier=_dense_is_easier(evaluated),
        evaluation=data, data=data.data, folds=folds, guarantee=words, seeds=seeds,
        chart=None if plot is None else plot.name,
        controls=any(kind.control for kind in kinds.values()),
        only=",".join(kinds), epsilons=",".join(f"{one:g}" for one in epsilons),
        accuracy=_by_inputs(
            evaluated, kinds, {PUBLIC: "public-only", **private, CENTRAL: "central, not private"},
            first=[["majority class", *[majority] * (len(private) + 2)]],
        ),
        shares=_by_inputs(
            evaluated, kinds, private, lambda model: model.closed_shares.get("accuracy")
        ),
        returned=_by_inputs(
            selected, kinds,
            {PUBLIC: "public-only", **{model_name(RETURNED, e): f"ε = {e:g}" for e in returned}},
        ) if selected else "",
        differences=differences_table(compared),
    )  # fmt: skip
    if plot is not None:
        write(_chart(evaluated, kinds, epsilons, words), plot)
    document = {name: one.to_json() | {"guarantee": words} for name, one in evaluated.items()}
    for name, one in selected.items():
        models = one.to_json()["models"]
        document[name]["returned"] = {
            model: value for model, value in models.items() if model.startswith(RETURNED)
        }
    publish(page, out, document)


def _dense_is_easier(evaluated: Mapping[str, Evaluation]) -> bool:
    """Return whether at ε 2 public vectors are above words, and a random encoder below."""
    at = {
        name: own.models[model_name(PRIVATE, 2.0)].values["accuracy"].value or 0.0
        for name, own in evaluated.items()
        if model_name(PRIVATE, 2.0) in own.models
    }
    if not {"random", "words", "public vectors"} <= set(at):
        return False
    return at["random"] < at["words"] < at["public vectors"]


def _together(measured: Mapping[str, Sequence[Fold]]) -> list[Fold]:
    """Return each fold with the models of all kinds, named "kind: model"; the majority once."""
    together = []
    for folds in zip(*measured.values(), strict=True):
        models = {MAJORITY: folds[0].outcomes[MAJORITY]}
        for name, fold in zip(measured, folds, strict=True):
            models |= {f"{name}: {model}": own for model, own in fold.outcomes.items()}
        together.append(replace(folds[0], outcomes=models))
    return together


def _pairs(kinds: Mapping[str, Inputs], epsilons: Sequence[float]) -> list[tuple[str, str]]:
    """Return what is compared: private rows with public-only, and dense rows with plain words."""
    found = []
    for name in kinds:
        for epsilon in epsilons:
            private = f"{name}: {model_name(PRIVATE, epsilon)}"
            found.append((private, f"{name}: {PUBLIC}"))
            if name == "components" and "titles" in kinds:
                found.append((private, f"titles: {model_name(PRIVATE, epsilon)}"))
            if name in ("titles", "components", "public vectors") and "words" in kinds:
                found.append((private, f"words: {model_name(PRIVATE, epsilon)}"))
                found.append((private, f"words: {CENTRAL}"))
    return found


def _by_inputs(
    found: Mapping[str, Evaluation],
    kinds: Mapping[str, Inputs],
    columns: Mapping[str, str],
    of: Callable[[ModelFigures], Estimate | None] = lambda model: model.values["accuracy"],
    first: Sequence[Sequence[str]] = (),
) -> str:
    """Return a table with a row for each kind of inputs, and a column for each model."""
    rows = [
        [kinds[name].label, *(percent(of(own.models[one])) for one in columns)]
        for name, own in found.items()
    ]
    return table(["inputs", *columns.values()], [*first, *rows])


_COLOURS = ("s4", "s1", "s2", "s5", "s6", "s7")


def _chart(
    evaluated: Mapping[str, Evaluation],
    kinds: Mapping[str, Inputs],
    epsilons: Sequence[float],
    words: str,
) -> str:
    """Return accuracy against ε of each kind, with references for words and titles."""
    points, references = [], []
    for number, (name, own) in enumerate(evaluated.items()):
        colour, kind = _COLOURS[number], kinds[name]
        values = {model: figures.values["accuracy"] for model, figures in own.models.items()}
        for epsilon in epsilons:
            points.append(
                point(
                    values[model_name(PRIVATE, epsilon)],
                    label=kind.label,
                    epsilon=epsilon * 2.0 ** (0.06 * (number - (len(evaluated) - 1) / 2)),
                    colour=colour,
                    series=number,
                    marker="o" if name in ("words", "titles") else "s",
                )
            )
        if name in ("words", "titles"):
            for model, said in ((PUBLIC, "public-only"), (CENTRAL, "not private")):
                references.append(
                    Reference(
                        value=values[model].value or 0.0, label=f"{name}: {said}", colour=colour
                    )
                )
    data = next(iter(evaluated.values())).data
    made = "SYNTHETIC " if data.get("synthetic") else ""
    return tradeoff_plot(
        points,
        alternative="Accuracy on threads held out against ε, by kind of inputs.",
        width=760,
        height=400,
        references=references,
        share=True,
        title=f"Accuracy on threads held out, {made}{data.get('name')}: a diagnostic, not covered "
        f"by ε.\n{words.partition(';')[0]}.",
        alone=True,
    )


REPRODUCTIONS = (
    items.Study(
        name="tags-encoders",
        title="Tags with whole threads held out: a pretrained encoder next to words and controls",
        run=reproduce,
        options={},
        reduced={"folds": 1, "seeds": 1, "epsilons": (2.0,), "only": ("words", "titles")},
        minutes=(600, 10),
    ),
)
