"""AdaDPS: the tables of the paper, and its figures of the same runs as curves.

    fedpriv reproduce adadps-table5

Table 5 has the clip norms and learning rates that its authors chose. Every table's column *as the
paper ran it* takes them from there; to run one yourself, name it: `load_preset("imdb", "DP-Adam")`.
That Figure 1 shows what adaptivity gains without privacy and loses with the noise, that two
set-ups are Table 7's, and the numbers of Tables 8 to 10, are remembered, not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from fedpriv.experiments.experiment import Experiment
from simulations.adadps.setups import imdb, lstm, mnist, pooled_tags
from simulations.adadps.setups.setup import Setup, table
from simulations.reproduction.items import Row, Study, Table

ELSEWHERE, HERE = "AdaDPS, public data from elsewhere", "AdaDPS, public data of its own"

SETUPS: dict[str, Setup] = {
    setup.key: setup
    for setup in (
        imdb.SETUP,
        lstm.SETUP,
        pooled_tags.SETUP,
        mnist.AUTOENCODER,
        mnist.CLASSIFIER,
    )
}

_SGD, _ADAM, _RMSPROP = "DP-SGD", "DP-Adam", "DP-RMSProp"
_PUBLIC, _PUBLIC_ADAM = "AdaDPS, public RMSProp", "AdaDPS, public Adam"
_TOKENS, _RANKS, _IDEAL = "AdaDPS, token frequency", "AdaDPS, word rank", "ideal (not private)"
_FIVE = (_SGD, _ADAM, _RMSPROP, _PUBLIC, _PUBLIC_ADAM)
_PUBLIC_AHEAD = (
    (_PUBLIC, _RMSPROP),
    (_PUBLIC, _ADAM),
    (_PUBLIC_ADAM, _ADAM),
    (_ADAM, _SGD),
    (_RMSPROP, _SGD),
)
#: Methods that the paper has not got, on the set-up where a run takes seconds.
_BEYOND = (
    "DP-AdaGrad",
    "AdaDPS, public AdaGrad",
    "DP-NSGD",
    "DP-NAdam",
    "DP²",
    "Scale, then privatise",
)
_PLAIN_SGD, _PLAIN_ADAM = "SGD (not private)", "Adam (not private)"
_PLAIN_PUBLIC = "AdaS, public (not private)"
_WARM, _AFTER, _R_PUB = "DP-SGD, warm start", "DP-Adam-Pub", "DP-R-Pub"
_LESS = ("AdaDPS, a fifth of it", "AdaDPS, a 25th of it")
_SMALLER_NOISE = replace(
    mnist.AUTOENCODER,
    title="MNIST auto-encoder, σ = 0.75",
    base=partial(mnist.experiment, "autoencoder", 0.75),
    paper_epsilon="3.0 at δ = 1/60,000 (remembered; recomputed 3.005 by RDP)",
)

_Printed = Mapping[str, float | None]


def load_preset(key: str, label: str) -> Experiment:
    """Return a method on a set-up as the paper ran it, in the settings of its Table 5.

    Args:
        key: Of the set-up: "imdb", "lstm", "tags", "autoencoder" or "mnist".
        label: Of the method.

    Raises:
        ValueError: If Table 5 has no such method or set-up.
    """
    if key not in SETUPS or label not in SETUPS[key].table5:
        known = "; ".join(f"{k}: {', '.join(s.table5)}" for k, s in SETUPS.items())
        raise ValueError(f"Table 5 has no {label!r} on {key!r}; it has {known}")
    setup = SETUPS[key]
    clip, rate = setup.table5[label]
    made = setup.make(label, "paper", "test", False)
    return made.with_options({"l2-clip-norm": clip, "learning-rate": rate})


def _tables(
    number: int,
    title: str,
    printed: Iterable[tuple[Setup, _Printed]],
    orderings: tuple[tuple[str, str], ...],
    notes: tuple[str, ...] = (),
) -> list[Table]:
    """Return a table of the paper on each of its set-ups, of the values that it printed."""
    named = f"adadps-table{number}", f"AdaDPS, Table {number}, {title}"
    return [
        table(*named, setup, setup.rows(values), orderings=orderings, notes=notes)
        for setup, values in printed
    ]


def _figures(number: int, title: str, setup: Setup, *labels: str) -> Table:
    named = f"adadps-figure{number}", f"AdaDPS, Figure {number}, {title}"
    return table(*named, setup, setup.rows(dict.fromkeys(labels)), points=20)


def _five(*values: float) -> dict[str, float | None]:
    return dict(zip(_FIVE, values, strict=True))


def _from_elsewhere(
    title: str,
    here: Setup,
    elsewhere: Setup,
    values: tuple[float, float, float],
    note: str,
) -> Table:
    """Return Table 3 on a set-up: public data of its own, or from elsewhere."""
    without, out, own = values
    return table(
        "adadps-table3",
        f"AdaDPS, Table 3, public data from elsewhere ({title})",
        here,
        (
            here.row(_SGD, without),
            replace(elsewhere.row(_PUBLIC, out), label=ELSEWHERE),
            replace(here.row(_PUBLIC, own), label=HERE),
        ),
        orderings=((ELSEWHERE, _SGD), (HERE, _SGD), (HERE, ELSEWHERE)),
        notes=(note,),
    )


def _less_public(
    setup: Setup,
    with_public: Callable[[int], Setup],
    size: int,
    values: tuple[float, float, float, float],
) -> Table:
    """Return Table 10 on a set-up: all of its public data, a fifth and a 25th of them."""
    upper, own, *fewer = values

    def row(share: int, label: str, paper: float) -> Row:
        left = max(1, size // share)
        public = {"public-batch": min(20, left), "refresh": "epoch"}
        less = replace(with_public(left), public=public)
        return replace(less.row(_PUBLIC, paper), label=label)

    return table(
        "adadps-table10",
        "AdaDPS, Table 10, size of the public data",
        setup,
        (
            setup.row(_IDEAL, upper),
            setup.row(_PUBLIC, own),
            *map(row, (5, 25), _LESS, fewer),
        ),
        orderings=((_PUBLIC, _LESS[1]), (_LESS[0], _LESS[1]), (_IDEAL, _PUBLIC)),
        notes=(
            "With less of it public the rest is thrown away, not made private, so that the rows "
            "share one private set, and, done right, one vocabulary.",
        ),
    )


def print_table5() -> None:
    """Print Table 5."""
    print(f"{'':32}{'method':26}{'clip norm':>10}{'learning rate':>15}")
    for setup in SETUPS.values():
        for label, (clip, rate) in setup.table5.items():
            print(f"{setup.title[:30]:32}{label:26}{clip:10g}{rate:15g}")


REPRODUCTIONS = (
    *_tables(
        1,
        "public data",
        (
            (imdb.SETUP, {**_five(0.63, 0.69, 0.67, 0.80, 0.80), **dict.fromkeys(_BEYOND)}),
            (lstm.SETUP, _five(0.70, 0.69, 0.69, 0.73, 0.73)),
            (pooled_tags.SETUP, _five(0.28, 0.30, 0.31, 0.40, 0.40)),
            (mnist.AUTOENCODER, _five(5.013, 3.697, 3.636, 3.566, 3.443)),
        ),
        _PUBLIC_AHEAD,
    ),
    *_tables(
        2,
        "mirror descent with public data",
        (
            (imdb.SETUP, {"PDA-DPMD": 0.62, _PUBLIC: 0.80, _TOKENS: 0.75}),
            (pooled_tags.SETUP, {"PDA-DPMD": 0.33, _PUBLIC: 0.40, _RANKS: 0.41}),
            (mnist.AUTOENCODER, {"PDA-DPMD": 3.9, _PUBLIC: 3.6}),
        ),
        ((_PUBLIC, "PDA-DPMD"), (_TOKENS, "PDA-DPMD"), (_RANKS, "PDA-DPMD")),
    ),
    _from_elsewhere(
        "Amazon's reviews",
        imdb.SETUP,
        imdb.with_public("amazon"),
        (0.63, 0.79, 0.80),
        "Amazon's reviews have to be downloaded; without them the table ends with an error that "
        "says how. Nothing of IMDB is public in that row, so its vocabulary, done right, is "
        "Amazon's too.",
    ),
    _from_elsewhere(
        "the first four users",
        pooled_tags.SETUP,
        pooled_tags.with_public("first users"),
        (0.28, 0.40, 0.40),
        "In the row of public data from elsewhere the pool is of the other 396 users.",
    ),
    *_tables(
        4,
        "no public data",
        (
            (
                imdb.SETUP,
                {
                    _SGD: 0.62,
                    _ADAM: 0.68,
                    _TOKENS: 0.75,
                    "AdaDPS, TF-IDF": 0.80,
                    "AdaDPS, mean magnitude": None,
                    _IDEAL: 0.82,
                },
            ),
        ),
        ((_TOKENS, _ADAM), (_IDEAL, _TOKENS)),
        (
            "In the column done right the side information comes from the 250 public reviews, not "
            "from private ones; the paper's row of TF-IDF is its run on TF-IDF features.",
        ),
    ),
    *(
        replace(item, paper_epsilon="∞, without noise")
        for item in _tables(
            6,
            "without privacy",
            (
                (
                    imdb.SETUP,
                    {
                        _PLAIN_SGD: 0.66,
                        _PLAIN_ADAM: 0.88,
                        _PLAIN_PUBLIC: 0.88,
                        "AdaS, token frequency (not private)": 0.88,
                    },
                ),
                (lstm.SETUP, {_PLAIN_SGD: 0.88, _PLAIN_ADAM: 0.88, _PLAIN_PUBLIC: 0.88}),
                (
                    pooled_tags.SETUP,
                    {
                        _PLAIN_SGD: 0.38,
                        _PLAIN_ADAM: 0.64,
                        _PLAIN_PUBLIC: 0.64,
                        "AdaS, word rank (not private)": 0.64,
                    },
                ),
                (
                    mnist.AUTOENCODER,
                    {_PLAIN_SGD: 5.013, _PLAIN_ADAM: 1.151, _PLAIN_PUBLIC: 1.805},
                ),
            ),
            ((_PLAIN_ADAM, _PLAIN_SGD), (_PLAIN_PUBLIC, _PLAIN_SGD)),
        )
    ),
    *_tables(
        7,
        "public data",
        (
            (mnist.CLASSIFIER, _five(0.9273, 0.9333, 0.9314, 0.9377, 0.9541)),
            (_SMALLER_NOISE, {_SGD: 3.792, _ADAM: 3.286, _PUBLIC: 3.158}),
        ),
        _PUBLIC_AHEAD,
    ),
    *_tables(
        8,
        "warm start on public data",
        (
            (imdb.SETUP, {_SGD: 0.63, _WARM: 0.73, _PUBLIC: 0.80}),
            (pooled_tags.SETUP, {_SGD: 0.28, _WARM: 0.33, _PUBLIC: 0.40}),
            (mnist.AUTOENCODER, {_SGD: 5.0, _WARM: 4.9, _PUBLIC: 3.6}),
        ),
        ((_WARM, _SGD), (_PUBLIC, _WARM)),
    ),
    *_tables(
        9,
        "public statistics after the noise",
        (
            (imdb.SETUP, {_AFTER: 0.74, _R_PUB: None, _PUBLIC: 0.80}),
            (pooled_tags.SETUP, {_AFTER: 0.31, _R_PUB: None, _PUBLIC: 0.40}),
            (mnist.AUTOENCODER, {_AFTER: 6.4, _R_PUB: None, _PUBLIC: 3.6}),
        ),
        ((_PUBLIC, _AFTER),),
    ),
    _less_public(imdb.SETUP, imdb.with_public, 250, (0.82, 0.80, 0.80, 0.75)),
    _less_public(pooled_tags.SETUP, pooled_tags.with_public, 500, (0.41, 0.40, 0.40, 0.39)),
    _figures(
        1,
        "adaptivity with and without privacy",
        imdb.SETUP,
        *(_PLAIN_SGD, _PLAIN_ADAM, _SGD, _ADAM),
    ),
    *(
        _figures(4, "public data", setup, *_FIVE)
        for setup in (imdb.SETUP, pooled_tags.SETUP, mnist.AUTOENCODER)
    ),
    _figures(5, "no public data", imdb.SETUP, _SGD, _ADAM, _TOKENS, "AdaDPS, TF-IDF", _IDEAL),
    _figures(5, "no public data", pooled_tags.SETUP, _SGD, _ADAM, _RANKS, _IDEAL),
    Study(
        name="adadps-table5",
        title="AdaDPS, Table 5, clip norms and learning rates that its authors chose",
        run=print_table5,
        minutes=(0.1, 0.1),
    ),
)
