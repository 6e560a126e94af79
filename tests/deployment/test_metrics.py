"""Metrics of a run: what Prometheus reads; a secure run's say nothing of a round's users."""

import re
import threading
import urllib.error
import urllib.request
from unittest import mock

import pytest

import fedpriv as fp
from fedpriv.deploy import metrics
from fedpriv.runs.status import StatusFile
from tests.harness.command_line import refusal
from tests.harness.refusals import refuses

SAMPLE = re.compile(r'^(fedpriv_\w+)\{((?:\w+="[^"]*",?)+)\} (\+Inf|[0-9.e+-]+)$')
OF_SECURE_RUNS = {
    *("fedpriv_up", "fedpriv_failed", "fedpriv_round", "fedpriv_rounds_planned", "fedpriv_nodes"),
    *("fedpriv_lost_attempts", "fedpriv_epsilon_spent", "fedpriv_epsilon_guaranteed"),
}


def run(corpus, out, **given):
    options = {"cohort": 6, "noise_multiplier": 1.0, "delta": 0.001, "l2_clip_norm": 1.0}
    options |= {"rounds": 2, "progress": False, **given}
    fp.run("dp-fedavg-tags", corpus=corpus.directory, out=out, **options)
    return out


@pytest.fixture(scope="module")
def simulated(tiny_corpus, tmp_path_factory):
    return run(tiny_corpus, tmp_path_factory.mktemp("metrics") / "run", seed=1)


@pytest.fixture(scope="module")
def secure(tiny_corpus, tmp_path_factory):
    return run(tiny_corpus, tmp_path_factory.mktemp("metrics") / "run", secure=True)


def samples(text):
    """By name, (labels, value); every line is a comment or a sample of the format."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels, value = SAMPLE.match(line).groups()
            found[name] = dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)
    return found


def test_a_simulation(simulated):
    found = samples(metrics.exposition(simulated))
    labels, epsilon = found["fedpriv_epsilon_spent"]
    assert epsilon > 0 and labels == {
        "experiment": "dp-fedavg-tags", "label": "", "mode": "simulation", "delta": "0.001",
        "unit": "user", "relation": "add-remove", "accountant": "PLD",
    }  # fmt: skip
    assert found["fedpriv_round"][1] == found["fedpriv_rounds_planned"][1] == 2
    of_users = {"cohort_size", "failed_users", "round_seconds", "last_round_ended_seconds"}
    assert {f"fedpriv_diagnostics_{name}" for name in of_users} <= set(found)


def test_no_epsilon_is_without_what_it_means(simulated, secure):
    for folder in (simulated, secure):
        for name, (labels, _) in samples(metrics.exposition(folder)).items():
            if "epsilon" in name:
                assert {"delta", "unit", "relation", "accountant"} <= set(labels)


def test_a_secure_run_counts_no_users_of_a_round_and_times_none(secure):
    status = StatusFile(secure, "secure")
    status.registered(nodes=3, users=17)
    status.round_ended(nodes_online=2)
    planted = secure / "diagnostics.jsonl"
    assert not planted.exists()
    planted.write_text('{"round_num": 2, "cohort_size": 6, "num_failed": 1, "seconds": 1.5}\n')
    try:
        text = metrics.exposition(secure)
    finally:
        planted.unlink()
    found = samples(text)
    assert set(found) == OF_SECURE_RUNS and found["fedpriv_nodes"][1] == 3
    assert not {6.0, 17.0, 1.5} & {value for _, value in found.values()}


def test_labels_cannot_end_a_line():
    (_, _, line) = metrics._gauge("x", "X.", 1, {"label": 'a"\n\\'})
    assert line == 'fedpriv_x{label="a\\"\\n\\\\"} 1.0'


@pytest.mark.slow
def test_it_is_served_on_loopback(simulated):
    address, bound = threading.Event(), []

    class Server(metrics.ThreadingHTTPServer):
        def server_activate(self):
            bound.append(self)
            super().server_activate()

    def ready(where):
        bound.append(where)
        address.set()

    with mock.patch.object(metrics, "ThreadingHTTPServer", Server):
        place = metrics.read_place("0")
        thread = threading.Thread(target=metrics.serve, args=(simulated, place, ready))
        thread.start()
        assert address.wait(60)
        server, where = bound
        try:
            assert where.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(where) as answer:
                assert answer.headers["Content-Type"] == metrics.CONTENT_TYPE
                assert answer.read().decode() == metrics.exposition(simulated)
            with refuses(urllib.error.HTTPError, 404) as error:
                urllib.request.urlopen(where.replace("/metrics", "/ledger.jsonl"))
            error.value.close()
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("place", ["", "x", "127.0.0.1:", "70000"])
def test_a_place_that_is_none_is_refused(place):
    with pytest.raises(ValueError):
        metrics.read_place(place)


def test_a_folder_without_a_run_is_refused(tmp_path):
    assert str(tmp_path) in refusal("status", tmp_path, "--metrics", "0")
