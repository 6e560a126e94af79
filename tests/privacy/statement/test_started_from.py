"""What a statement says of where training started, and what it refuses."""

import html
import json

import pytest

from fedpriv.checkpoints.tensor_files import START_FILE, write_tensors
from fedpriv.cli.run import print_result
from fedpriv.experiments.load import load_experiment
from fedpriv.privacy.statement.statement import run_statement
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.report.page import render
from fedpriv.report.run_record import read_run
from fedpriv.runs.prepared import resume_run, start_run

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
def test_a_public_start_is_named_as_taken_to_be_public(started):
    run = started()
    summary = run.run()
    assert summary["start"]["kind"] == "public" and summary["start"]["factor"] <= 1
    assert summary["epsilon_does_not_cover"] == []
    text = str(run_statement(run.folder.path))
    assert "model that learnt from public examples" in text
    assert "get no protection from this run" in text


@pytest.mark.slow
def test_a_start_from_all_posts_is_not_covered_and_no_secure_run_has_it(started, tmp_path):
    with pytest.raises(ValueError, match="a start from all of public users' posts"):
        started(secure=True, public_text="all-posts")
    assert not (tmp_path / "run").exists()
    summary = started(public_text="all-posts").run()
    assert summary["epsilon_does_not_cover"] == [POSTS]
    text = str(run_statement(tmp_path / "run"))
    assert f"does NOT cover: {POSTS}" in text and "were not public, and ε does not cover" in text
    assert "learnt from public examples" not in text


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
def test_that_answers_to_a_deleted_account_change_is_said(started):
    run = started()
    run.folder.close()
    text = " ".join(str(run_statement(run.folder.path)).split())
    assert "carries the title and tags of the question it answers" in text
    assert "others' answers to its questions would have neither title nor tags" in text
    assert "those examples do change" in text


@pytest.mark.slow
def test_of_a_file_it_is_said_that_the_run_cannot_know_what_it_learnt_from(started, tmp_path):
    tensors = started(start="fresh").state.params
    write_tensors(tmp_path / "model.safetensors", tensors, {})
    (tmp_path / "run").rename(tmp_path / "first")
    run = started(start="file", start_file=str(tmp_path / "model.safetensors"))
    run.run()
    text = str(run_statement(run.folder.path))
    assert "params in a file; what they were learnt from, this run cannot know" in text
    assert "what that cost comes on top of this ε" in text


def test_from_zero_nothing_is_said_of_a_start(started):
    run = started(start="fresh", public_text="all-posts")
    assert run.run()["epsilon_does_not_cover"] == []
    assert "Start:" not in str(run_statement(run.folder.path))


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
    with pytest.raises(ValueError, match="start"):
        resume_run(tmp_path / "run")


@pytest.mark.slow
def test_a_secure_run_keeps_no_figure_of_rostered_users(started, tmp_path):
    started(secure=True).run()
    document = json.loads((tmp_path / "run" / "experiment.json").read_text("utf-8"))
    assert "accuracy_public_only" not in document["baseline"]
    assert document["start"]["kind"] == "public"
    # A share of rostered users' examples to the last digit tells how many there are.
    assert not [name for name in document["corpus"]["provenance"] if "share" in name]
    text = " ".join(str(run_statement(tmp_path / "run")).split())
    assert "An answer's example carries the title and tags of the question it answers" in text
    assert "how many do is counted on rostered users" in text
