"""Shared by all studies: Markdown tables, pages, pictures, t-intervals."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from scipy.stats import t as student

from fedpriv.training.devices import device_description, usable_device

Spec = Mapping[str, Any]
Row = dict[str, Any]

_is_reduced: ContextVar[bool] = ContextVar("reduced size", default=False)
_REDUCED = "**Reduced size: fewer steps, examples or seeds; no value of it is a result.**"


@contextmanager
def reduced_size() -> Iterator[None]:
    """Mark pages and pictures that are made within as of the reduced size."""
    token = _is_reduced.set(True)
    try:
        yield
    finally:
        _is_reduced.reset(token)


def _marked(page: str) -> str:
    """Return a page that says below its heading that it is of the reduced size, where it is."""
    if not _is_reduced.get() or "reduced size" in page.lower():
        return page
    heading, _, rest = page.partition("\n")
    return f"{heading}\n\n{_REDUCED}\n{rest}"


def table(
    head: Sequence[str], rows: Iterable[Sequence[object]], *, words: int = 1, align: str = "---:"
) -> str:
    """Return a Markdown table.

    Args:
        head: Of each column.
        rows: Cells.
        words: How many columns, from the left, are aligned to the left.
        align: Of the others.
    """
    rule = "|".join(["---"] * words + [align] * (len(head) - words))
    return "\n".join([_line(head), f"|{rule}|", *map(_line, rows)])


def _line(cells: Sequence[object]) -> str:
    return f"|{'|'.join(f' {cell} ' if cell != '' else ' ' for cell in cells)}|"


_SIMULATIONS = Path(__file__).parents[1]


def render(template: str, **values: Any) -> str:
    """Return a page from its Jinja template, with each paragraph and list item on one line.

    Args:
        template: Path within `simulations/`.
        values: Whatever the template names; functions too, and `table`.

    Raises:
        jinja2.UndefinedError: If the template names something else.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_SIMULATIONS),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # Markdown, of our own values
    )
    environment.globals["table"] = table
    paragraphs = re.split(r"\n\s*\n", environment.get_template(template).render(values).strip())
    return "\n\n".join(map(_unwrapped, paragraphs)) + "\n"


def paragraphs(text: str) -> tuple[str, ...]:
    """Return the paragraphs of a Markdown file, given by its path within `simulations/`."""
    return tuple(map(_unwrapped, (_SIMULATIONS / text).read_text("utf-8").split("\n\n")))


def _unwrapped(paragraph: str) -> str:
    """Return lines joined, but for those that begin a row of a table or an item of a list."""
    return re.sub(r"\s*\n\s*+(?!\||- )", " ", paragraph.strip())


def write(text: str, out: Path | None, found: object = None) -> None:
    """Write a page where that is asked for, with what it is of, as JSON, next to it.

    Args:
        text: The page.
        out: Where; None to write nothing.
        found: What it is of; None to write no JSON.
    """
    if out is None:
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(_marked(text), "utf-8")
    if found is not None:
        data = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
        out.with_suffix(".json").write_text(data, "utf-8")


def publish(text: str, out: Path | None, found: object = None) -> None:
    """Print a page, and `write` it."""
    print(_marked(text))
    write(text, out, found)


def drawing(width: float, height: float) -> Any:
    """Return an empty matplotlib figure, none of pyplot's, whose backend is global."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Any, path: Path, *, name: str = "", dpi: int = 150) -> None:
    """Write a picture in the format of its name's ending; the same picture gives the same SVG.

    Args:
        figure: Of matplotlib.
        path: Ends in .png or .svg; the folder is made.
        name: Of an SVG's ids; "" for the file's.
        dpi: Of a PNG.
    """
    import matplotlib

    path.parent.mkdir(parents=True, exist_ok=True)
    if _is_reduced.get():
        figure.text(0.995, 0.99, "reduced size", ha="right", va="top", fontsize=8, color="#b00020")
    if path.suffix.lower() == ".svg":
        with matplotlib.rc_context({"svg.hashsalt": name or path.stem}):
            figure.savefig(path, format="svg", metadata={"Date": None})
    else:
        figure.savefig(path, dpi=dpi, format="png")


def note_below(figure: Any, text: str, size: float = 7.5) -> None:
    """Write what every ε of a picture is below it, on as many lines as its width needs."""
    # A letter is about half as wide as its size, which is in 72nds of an inch.
    width = int(figure.get_figwidth() * 72 / (0.53 * size))
    lines = [line for part in text.split("\n") for line in textwrap.wrap(part, width)]
    figure.supxlabel("\n".join(lines), fontsize=size, color="#666666", x=0.01, ha="left")


def t_half(values: Sequence[float] | np.ndarray) -> float:
    """Return half of the 95 % t-interval of a mean; infinite of a single value."""
    array = np.asarray(values, float)
    if len(array) < 2:
        return math.inf
    quantile = float(student.ppf(0.975, len(array) - 1))
    return quantile * float(array.std(ddof=1)) / math.sqrt(len(array))


def bars(means: Sequence[float], halves: Sequence[float], most: float) -> np.ndarray:
    """Return how far intervals reach below and above means of values between 0 and a most, (2, n).

    A t-interval of two seeds may be many times as long as the range. Of unbounded values `most` is
    infinite, and nothing is cut.
    """
    middle, half = np.asarray(means, float), np.asarray(halves, float)
    if math.isinf(most):
        return np.stack([half, half])
    return np.stack([np.minimum(half, middle), np.minimum(half, most - middle)])


def spread(values: Sequence[float]) -> float:
    """Return half the 95 % t-interval of a mean; 0 of a single value."""
    return t_half(values) if len(values) > 1 else 0.0


def mean_and_spread(values: Sequence[float]) -> str:
    """Return a mean in per cent, with half its 95 % interval."""
    return f"{100 * mean(values):.1f} ± {100 * spread(values):.1f}" if values else "–"


def on_device(device: str | None) -> dict[str, str]:
    """Return what a row says of the device it was trained on; nothing of the processor's path."""
    return {} if device is None else {"device": device_description(usable_device(device))}


def trained_on(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a sentence of the devices that rows name, after a space; "" where none does."""
    devices = sorted({row["device"] for row in rows if "device" in row})
    return f" Trained on {', '.join(devices)}." if devices else ""


def synthetic_words(synthetic: bool) -> str:
    """Return what is behind a title: whether its data are synthetic."""
    return " (SYNTHETIC data)" if synthetic else ""
