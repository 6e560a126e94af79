"""Synthetic tables and figures of runs that take no time."""

import numpy as np
from scipy import sparse

from fedpriv.experiments.averaging import CentralExperiment
from fedpriv.mechanisms import SideInformation
from fedpriv.tasks.central import CentralTask, zeros
from fedpriv.training.evaluate import Metrics
from fedpriv.training.per_example.linear import LogisticGradients
from simulations.reproduction.items import Cell, Row, Table
from simulations.reproduction.page import markdown
from simulations.reproduction.runs import complete, final_runs, tuning_runs

DIM = 5
SEEDS = (0, 1)
#: Test figures prefer the small steps, validation figures the large ones.
RATES = ({"learning-rate": 0.01}, {"learning-rate": 1.0}, {"learning-rate": 0.1})


def task(split, *, synthetic=True, source="public"):
    rng = np.random.default_rng(3)
    x = sparse.csr_matrix(rng.normal(size=(60, DIM)).astype(np.float32))
    y = (x.toarray()[:, 0] > 0).astype(np.int64)

    def measure(params):
        length = float(np.linalg.norm(params["weight"]))
        good = 1 - np.exp(-length) if split == "validation" else np.exp(-length)
        return Metrics.of(60, accuracy=float(good), loss=float(-good))

    return CentralTask(
        name="sixty rows",
        train=LogisticGradients(x, y),
        num_train=60,
        init=zeros({"weight": (DIM,), "bias": (1,)}),
        measure=measure,
        side={
            "frequency": lambda: SideInformation(
                multiplier={"weight": np.ones(DIM, np.float32)},
                source=source,
                description="counts",
            )
        },
        data_sha256=lambda: {"private": "sixty"},
        synthetic=synthetic,
    )


def made(split="test", reduced=False, *, name="tiny", synthetic=True, source="public", **options):
    chosen = {"steps": 2 if reduced else 5, **options}
    return (
        CentralExperiment(
            name=name,
            description="A test.",
            task=lambda experiment, corpus: task(split, synthetic=synthetic, source=source),
            batch_size=6,
            delta=1e-3,
            eval_every=10**9,
        )
        .with_options({"noise_multiplier": 1.0})
        .with_options(chosen)
    )


def cell(grid=({},), **options):
    return Cell(make=lambda split, reduced: made(split, reduced, **options), grid=grid)


def row(label, paper=0.5, grid=({},), **options):
    return Row(label=label, paper=paper, cells={"ours": cell(grid, **options)})


def table(*given, **changes):
    fields = {
        "name": "tiny",
        "title": "Tiny, Table 1",
        "columns": {"ours": "as here"},
        "rows": given or (row("DP-SGD", 0.63, RATES),),
        "paper_epsilon": "1.5 at δ = 0.001, remembered",
        "minutes": (1, 0.5),
    }
    return Table(**{**fields, **changes})


def figure(*rows, **changes):
    fields = {
        "name": "tiny-curves",
        "title": "Tiny, Figure 1",
        "rows": rows or (row("DP-SGD", None, RATES),),
        "points": 3,
    }
    return table(**{**fields, **changes})


def tuned(one):
    """Rows of a table's tuning runs, by identity."""
    done = {}
    complete(tuning_runs(one, reduced=False), done)
    return done


def done_for(one, *, seeds=SEEDS, processes=1):
    """Rows of all of a table's runs, by identity."""
    done = {}
    complete(tuning_runs(one, reduced=False), done, processes=processes)
    complete(final_runs(one, done, seeds=seeds, reduced=False), done, processes=processes)
    return done


def shown(one, **more):
    return markdown(one, done_for(one), seeds=SEEDS, **more)
