"""What a statement says of where training started, and what it refuses."""

import html

import pytest

from fedpriv.checkpoints.tensor_files import START_FILE
from fedpriv.cli.run import print_result
from fedpriv.experiments.load import load_experiment
from fedpriv.privacy.statement.statement import run_statement
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.report.page import render
from fedpriv.report.run_record import read_run
from fedpriv.runs.prepared import resume_run, start_run
from tests.harness.refusals import refuses

SMALL = {"rounds": 3, "cohort": 10.0}
POSTS = "a start from all of public users' posts, with rostered users' titles and tags"


@pytest.fixture
def started(tiny_corpus, tmp_path):
    def started(*, secure=False, **options):
        named = {name.replace("_", "-"): value for name, value in options.items()}
        experiment = load_experiment("adadps-tags").with_options({**SMALL, **named})
        out = tmp_path / "run"
        return start_run(experiment, "adadps-tags", tiny_corpus, out, secure=secure)

    return started


@pytest.mark.slow
def test_a_start_from_all_posts_is_not_covered_and_no_secure_run_has_it(started, tmp_path):
    with refuses(ValueError, POSTS):
        started(secure=True, public_text="all-posts")
    assert not (tmp_path / "run").exists()
    summary = started(public_text="all-posts").run()
    assert summary["epsilon_does_not_cover"] == [POSTS]
    assert f"does NOT cover: {POSTS}" in str(run_statement(tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.parametrize("start", ["public", "fresh"])
def test_a_public_only_figure_of_all_posts_is_never_called_public_alone(
    started, tmp_path, capsys, start
):
    summary = started(start=start, public_text="all-posts").run()
    assert "rostered users' titles and tags" in summary["public_only_of"]
    path = tmp_path / "run"
    print_result(read_run(path), run_statement(path), path / "report.html")
    (line,) = [text for text in capsys.readouterr().out.splitlines() if "; public-only" in text]
    assert "ε = 0" not in line and summary["public_only_of"] in line
    page = render(read_run(tmp_path / "run"))
    assert "at ε = 0" not in page and "rostered users' titles and tags" in html.unescape(page)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_another_start_than_the_sealed_one_is_seen(started, tmp_path, damage):
    started().run()
    file = tmp_path / "run" / START_FILE
    assert verify_run(tmp_path / "run").ok
    if damage == "gone":
        file.unlink()
    else:
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(bytes(content))
    found = verify_run(tmp_path / "run")
    assert [check.name for check in found.checks if not check.ok] == ["start"]
    with refuses(ValueError, tmp_path / "run"):
        resume_run(tmp_path / "run")
