"""`fedpriv uncertainty`: how much of a model is noise, and how long to wait between checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fedpriv.cli.output import fail, print_json, print_line, print_table
from fedpriv.cli.run import NamedAgain
from fedpriv.untrusted_text import plain

if TYPE_CHECKING:
    from fedpriv.api.uncertainty import RunUncertainty, Spread
    from fedpriv.measures import Measure

_DEFAULT_K = (3, 5, 10, 20)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("uncertainty")(uncertainty)


def uncertainty(
    run: Annotated[Path | None, typer.Argument(help="A run folder, finished or under way.")] = None,
    k: Annotated[
        list[int] | None,
        typer.Option("--k", help="How many checkpoints. May be given several times: 3, 5, 10, 20."),
    ] = None,
    spacing: Annotated[
        int | None,
        typer.Option(min=1, help="Rounds between them; those of the newest two if not given."),
    ] = None,
    burn_in: Annotated[int, typer.Option(min=0, help="Rounds left out at the start.")] = 0,
    corpus: Annotated[
        Path | None,
        typer.Option(help="Where the prepared corpus is now, if it has moved since the run."),
    ] = None,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan",
            help="Instead of a run's: burn-in and spacing for noisy gradient descent on a strongly "
            "convex loss, from the three numbers below.",
        ),
    ] = False,
    learning_rate: Annotated[
        float | None, typer.Option(help="With --plan: η, the effective rate of a round.")
    ] = None,
    strong_convexity: Annotated[
        float | None, typer.Option(help="With --plan: μ, such as an l2 regulariser's.")
    ] = None,
    smoothness: Annotated[float | None, typer.Option(help="With --plan: L.")] = None,
    shortfall: Annotated[
        float,
        typer.Option(help="With --plan: how much too small S/k may be expected."),
    ] = 0.05,
    distance: Annotated[
        float,
        typer.Option(
            help="With --plan: of the start from the stationary mean, in its standard deviations."
        ),
    ] = 10.0,
    experiment: NamedAgain = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say how much of a model is noise, from the last checkpoints of its run.

    It reads released checkpoints and public examples, and charges nothing. What it says is of the
    noise and the cohorts, an estimate, and not of which users took part or which examples were
    measured on.

    For example: fedpriv uncertainty runs/eps8 --k 5 --spacing 10
    Or, before a run: fedpriv uncertainty --plan --learning-rate 0.5 --strong-convexity 0.01
    --smoothness 1 --k 5
    """
    if plan == (run is not None):
        fail("give a run folder, or --plan with --learning-rate, --strong-convexity, --smoothness")
    if plan:
        numbers = {
            "--learning-rate": learning_rate,
            "--strong-convexity": strong_convexity,
            "--smoothness": smoothness,
        }
        _plan(numbers, tuple(k or _DEFAULT_K), shortfall, distance, as_json=as_json)
        return
    from fedpriv.api.uncertainty import run_uncertainty

    assert run is not None
    found = run_uncertainty(
        run,
        ks=tuple(k or _DEFAULT_K),
        spacing=spacing,
        burn_in=burn_in,
        experiment=experiment,
        corpus=corpus,
    )
    if as_json:
        print_json(found.to_json())
    else:
        _show(found)


def _plan(
    given: dict[str, float | None],
    ks: tuple[int, ...],
    shortfall: float,
    distance: float,
    *,
    as_json: bool,
) -> None:
    from fedpriv.checkpoints.uncertainty import contraction, waiting

    missing = [name for name, value in given.items() if value is None]
    if missing:
        fail(f"--plan needs {', '.join(missing)} too")
    rate, least, most = (float(value or 0.0) for value in given.values())
    rho = contraction(rate, least, most)
    found = [waiting(rho, k, shortfall=shortfall, distance=distance) for k in ks]
    if as_json:
        rows = [
            {"k": w.k, "burn_in": w.burn_in, "spacing": w.spacing, "rounds": w.rounds,
             "bias": w.bias, "shortfall": w.shortfall}
            for w in found
        ]  # fmt: skip
        print_json({"contraction": rho, "distance": distance, "k": rows})
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("k", "burn-in t1", "spacing t2", "rounds t1 + k t2"):
        table.add_column(name, justify="right")
    for w in found:
        table.add_row(str(w.k), f"{w.burn_in:,}", f"{w.spacing:,}", f"{w.rounds:,}")
    print_table(table)
    print_line(
        f"Contraction a round: max(|1 - ηµ|, |1 - ηL|) = {rho:g}. The correlation of checkpoints "
        f"s rounds apart is at most its s-th power; with t2 the mean's variance S/k is expected at "
        f"most {100 * shortfall:g} % too small, after t1 the mean is within {found[0].bias:.2g} "
        f"standard deviations of the stationary one, if it began {distance:g} away."
    )
    print_line(
        "Assumed: a strongly convex, smooth loss; noise that does not depend on the params; one "
        "step a round, without momentum, and no clipping that acts."
    )


def _show(found: RunUncertainty) -> None:
    from fedpriv.api.uncertainty import NOT_COVERED

    for measure in found.measures:
        if not any(measure.name in spread.figures for spread in found.spreads):
            continue
        table = Table(box=None, header_style="bold", pad_edge=False)
        for name in ("k", "rounds", plain(measure.label), "± of the mean", "± of one draw"):
            table.add_column(name, justify="right")
        for name in ("lag-1 correlation", "± corrected"):
            table.add_column(name, justify="right")
        for spread in found.spreads:
            table.add_row(*_cells(spread, measure))
        print_table(table)
        print_line("")
    _show_scores(found)
    if found.aggregate in ("ema", "upa"):
        print_line(
            f"The run releases an aggregate ({found.aggregate}): of figures linear in the params "
            f"its variance is {found.weight_square_sum:.3g} times that of one draw."
        )
    elif found.weight_square_sum is None:
        print_line(
            f"The run's figures are of what several models answer together ({found.aggregate}); "
            "those above are of its single models, which do not say how much the former vary."
        )
    of = "SYNTHETIC data, " if found.synthetic else ""
    print_line(f"Measured on {of}{found.measured_on}; 95 % t-intervals. It is the {NOT_COVERED}.")


def _cells(spread: Spread, measure: Measure) -> list[str]:
    from fedpriv.report.wording import NOTHING, figure, half_width, number

    if measure.name not in spread.figures:
        return [str(spread.k), "too few are kept", *[NOTHING] * 5]
    one: Any = spread.figures[measure.name]
    return [
        str(spread.k),
        f"{spread.rounds[0]:,} to {spread.rounds[-1]:,}",
        figure(measure, float(one.mean)),
        half_width(measure, float(one.half_width)),
        half_width(measure, float(one.draw_half_width)),
        number(float(one.autocorrelation), 2) if one.k >= 4 else NOTHING,
        half_width(measure, float(one.corrected_half_width)),
    ]


def _show_scores(found: RunUncertainty) -> None:
    from fedpriv.api.uncertainty import score_quantiles
    from fedpriv.report.wording import number

    known = [spread for spread in found.spreads if spread.scores is not None]
    if not known:
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("k", "width of the predicted class's score, median", "90th percentile"):
        table.add_column(name, justify="right")
    for spread in known:
        assert spread.scores is not None
        middle, high = (score_quantiles(spread.scores)["draw_width"][q] for q in ("0.5", "0.9"))
        table.add_row(str(spread.k), number(middle, 3), number(high, 3))
    print_table(table)
    print_line("Widths of 95 % intervals of one draw, over examples.")
    print_line("")
