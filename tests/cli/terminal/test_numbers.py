"""One way to write δ, in the terminal, the pages, the statements and the card."""

import html
import re

import pytest

import fedpriv as fp
from tests.cli.typed import run

#: Rounded up it is 6.17e-05, rounded to nearest 6.16e-05.
DELTA = 6.1612e-05

_DELTA = re.compile(r"δ = ([^;,()<>]*?[\d⁰¹²³⁴-⁹])(?![\d.⁰-⁹e×-])")
_HIDDEN = re.compile(r"<svg.*?</svg>|<style.*?</style>|<script.*?</script>", re.DOTALL)
_LITERAL = re.compile(r"<table class=\"pairs\">.*?</table>|## Training.*", re.DOTALL)


@pytest.fixture(scope="module")
def outputs(tiny_corpus, tmp_path_factory):
    """What everything says that speaks of one run, by who says it."""
    top = tmp_path_factory.mktemp("numbers")
    folder, said = top / "run", {}
    said["run"] = run(
        *("run", "dp-fedavg-tags", "--corpus", tiny_corpus.directory, "--out", folder),
        *("--rounds", 1, "--cohort", 20, "--noise-multiplier", 0.5, "--delta", DELTA),
    ).output
    said["verify"] = run("verify", folder).output
    said["compare"] = run("compare", folder, "--out", top / "compare.html").output
    said["compared page"] = (top / "compare.html").read_text("utf-8")
    said["report"] = (folder / "report.html").read_text("utf-8")
    run("export", folder, "--to", top / "model")
    said["card"] = (top / "model" / "README.md").read_text("utf-8")
    shape = ("--users", 1234, "--cohort", 1111.5, "--rounds", 1500, "--delta", DELTA)
    said["account"] = run("account", *shape, "--noise-multiplier", 1).output
    said["calibrate"] = run("calibrate", *shape, "--target-epsilon", 2000, "--no-grid").output
    found = fp.load(folder)
    return said | {"api": str(found), "notebook": found._repr_html_(), "top": str(top)}


def readable(outputs, who):
    """What a person reads: no drawings, no settings as they are typed, no paths."""
    text = _HIDDEN.sub("", outputs[who])
    text = _LITERAL.sub("", text)
    return html.unescape(text).replace(outputs["top"], "")


DELTAS = ("run", "verify", "report", "card", "account", "calibrate", "api", "notebook")


@pytest.mark.slow
@pytest.mark.parametrize("who", [*DELTAS, "compared page"])
def test_delta_is_written_in_one_way(outputs, who):
    found = set(_DELTA.findall(readable(outputs, who)))
    assert found == {"6.17e-05"}


@pytest.mark.slow
def test_delta_of_a_table(outputs):
    assert "6.17e-05" in outputs["compare"].split() and "δ" in outputs["compare"].split()
