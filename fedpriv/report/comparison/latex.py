"""The comparison as LaTeX: one table a section, with the terms of its ε in the caption."""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv.report.comparison.groups import Group, gaps, mismatches
from fedpriv.report.comparison.rows import gain_text, measure_text
from fedpriv.report.comparison.sections import Section, sections_of
from fedpriv.report.comparison.table import nouns_of, references_of, shown_columns
from fedpriv.report.headline import privacy_terms
from fedpriv.report.wording import NOTHING, epsilon, figure, percent
from fedpriv.untrusted_text import plain

_SIGNS = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}",
    "ε": r"$\varepsilon$", "δ": r"$\delta$", "ρ": r"$\rho$", "σ": r"$\sigma$", "∞": r"$\infty$",
    "±": r"$\pm$", "×": r"$\times$", "−": "$-$", "–": "--", "·": r"$\cdot$", "\u202f": r"\,",
    "⁻": r"$^{-}$",
}  # fmt: skip
_SIGNS |= {sign: f"$^{{{digit}}}$" for digit, sign in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")}


def as_latex(groups: Sequence[Group]) -> str:
    """Return the comparison as tables for a paper; they need the package booktabs."""
    parts = [_table(section) for section in sections_of(groups)]
    return "% Needs \\usepackage{booktabs}.\n" + "\n".join(parts)


def escaped(value: object) -> str:
    r"""Return any value as one line of LaTeX text that means only itself.

    >>> print(escaped("50 % of a_b\\n"))
    50 \% of a\_b\textbackslash{}n
    """
    text = " ".join(plain(value).split())
    return "".join(_SIGNS.get(sign, sign) for sign in text)


def _table(section: Section) -> str:
    columns, nouns = shown_columns(section), nouns_of(section)
    gains = any(group.gain for group in section.groups)
    closed = any(section.gap_closed(group) is not None for group in section.groups)
    names = [
        f"{c.measure.label}, {nouns.rostered if c.diagnosed else nouns.public}s" for c in columns
    ]
    names += ["gain"] if gains else []
    names += ["gap closed"] if closed else []
    names += ["ε", f"{nouns.turn}s", "seeds"]
    rows = []
    for group in section.groups:
        cells = [measure_text(c.measure, group.measure(c)) for c in columns]
        cells += [gain_text(group)] if gains else []
        cells += [percent(section.gap_closed(group), 0)] if closed else []
        done = min(run.rounds_done for run in group.runs)
        cells += [epsilon(group.epsilon), f"{done:,}", str(len(group.runs))]
        name = ", ".join(filter(None, (group.label, group.unfinished_mark)))
        rows.append([name, *cells])
    for name, spent, value in references_of(section):
        cells = [figure(c.measure, value) if c == section.lead else NOTHING for c in columns]
        cells += [NOTHING] * (gains + closed)
        rows.append([name, *cells, spent, NOTHING, NOTHING])
    body = "\n".join(f"{' & '.join(map(escaped, row))} \\\\" for row in rows)
    return (
        "\\begin{table}\n\\centering\n"
        f"\\caption{{{escaped(_caption(section))}}}\n"
        f"\\begin{{tabular}}{{l{'r' * len(names)}}}\n\\toprule\n"
        f"{' & '.join(map(escaped, ['experiment', *names]))} \\\\\n\\midrule\n"
        f"{body}\n\\bottomrule\n\\end{{tabular}}\n\\end{{table}}\n"
    )


def _caption(section: Section) -> str:
    """Return what the figures are meaningless without."""
    groups, nouns = section.groups, nouns_of(section)
    terms = dict.fromkeys(", ".join(privacy_terms(g.head)) for g in groups if g.head.private)
    said = [f"{section.title}."]
    said += [f"ε with {'; or '.join(terms)}."] if terms else ["No run is private."]
    said += gaps(groups)
    if any(column.diagnosed for column in shown_columns(section)):
        said.append(f"Figures of {nouns.diagnosed}.")
    if any(group.head.simulated for group in groups):
        said.append("Simulated: the noise came from a seed.")
    if section.public_only is None:
        said.append("Public-only was not measured.")
    if any(len(group.runs) > 1 for group in groups):
        said.append("± is half a 95 % t-interval over seeds.")
    if found := mismatches(groups):
        said.append(f"Not like with like: the runs differ in {', '.join(found)}.")
    return " ".join(said)
