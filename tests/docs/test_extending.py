"""The page about extending: its twelve files, as they stand, run, killed, resumed, verified."""

import importlib
import re
import sys
from collections import Counter
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import fedpriv
from client import app as client_app
from fedpriv.backends import Backend, SerialBackend
from fedpriv.backends.flower.settings import OWN_KEYS, opened_node
from fedpriv.experiments.build import build
from fedpriv.experiments.load import load_experiment
from fedpriv.experiments.noise import Noise
from fedpriv.mechanisms.event import FIELDS, Event, Relation
from fedpriv.mechanisms.privatizer import Privatizer
from fedpriv.privacy import accounting
from fedpriv.privacy.accounting import epsilon, epsilon_of
from fedpriv.privacy.ledger.state import read_ledger
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.privacy.trials import Trials
from fedpriv.rng import Key
from fedpriv.runs.backends import BACKENDS, NamedBackend, named_backends, open_worker, serial
from fedpriv.runs.loop import rounds
from fedpriv.runs.prepared import start_run
from fedpriv.sums import PartialSum
from fedpriv.training.algorithm import NO_CONTEXT
from server import app as server_app
from tests.backends.flower.stub_grid import AppNode, StubGrid, context
from tests.cli.typed import figures
from tests.docs.shell_blocks import python_files
from tests.harness.command_line import fedpriv as command
from tests.harness.kills import killed_after
from tests.harness.refusals import refuses
from tests.harness.resumed import resume_run
from tests.simulations.photographs.records import write_records

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text("utf-8")
FILES = python_files(PAGE)
EXPERIMENTS = ["lines", "blocks", "proximal", "nesterov", "smooth", "median", "largest", "discrete",
               "twice", "stream"]  # fmt: skip


@pytest.fixture(autouse=True)
def page(tmp_path, monkeypatch):
    """The page's files, in a folder that is the working directory; returns a loader of them."""
    for name, code in FILES.items():
        (tmp_path / f"{name}.py").write_text(code, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield importlib.import_module
    for name in FILES:
        sys.modules.pop(name, None)


def start(name, out, **rest):
    reference = f"{name}:experiment"
    return start_run(load_experiment(reference), reference, None, Path(out), **rest)


def test_files_that_the_page_names_are_there():
    assert set(FILES) == {*EXPERIMENTS, "children", "pictures"}
    rows = [line.split("|")[1:-1] for line in PAGE.splitlines() if line.startswith("| a")]
    assert {row[1].strip(" `").removesuffix(".py") for row in rows} == set(FILES)
    root = Path(fedpriv.__file__).parent
    for named in re.findall(r"`([a-z]+/[^` ]+\.py)`", PAGE):
        assert (root / named).is_file() or (root.parent / named).is_file(), named


@pytest.mark.slow
def test_a_data_set_split_among_users_trains_alike_here_and_on_nodes(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPRIV_DATA", str(write_records(tmp_path, 300, 20)))
    options = {"users": 30, "cohort": 10.0, "rounds": 2}
    chosen = load_experiment("pictures:experiment").with_options(options)
    start_run(chosen, "pictures:experiment", None, Path("here")).run()
    here = fedpriv.load(Path("here"))
    assert "accuracy_public" in here.summary and here.summary["rounds"] == 2
    config = {
        **OWN_KEYS, "guard-users": False, "experiment": f"{tmp_path / 'pictures.py'}:experiment",
        "out": str(tmp_path / "there"), "options": "users = 30\ncohort = 10.0\nrounds = 2",
    }  # fmt: skip
    opened_node.cache_clear()
    nodes = {n + 1: AppNode(client_app.app, n, 3, config) for n in range(3)}
    server_app.app(StubGrid(nodes), context(run_config=config))
    opened_node.cache_clear()
    there = fedpriv.load(tmp_path / "there")
    assert all(np.array_equal(here.params[name], there.params[name]) for name in here.params)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_it_runs_as_a_command_and_verifies(name):
    told = figures("run", f"{name}:experiment", "--out", "run")
    assert told["rounds"] == 10 and 0 < told["epsilon"] < 10
    found = verify_run("run")
    assert found.ok, found
    assert found.epsilon is not None and found.epsilon.value == told["epsilon"]
    assert found.num_charges == (1 if name == "stream" else 10)
    plan = build(load_experiment(f"{name}:experiment"), None).plan
    assert told["epsilon"] == plan.total().value
    assert "ε" in Path("run/report.html").read_text("utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name != "nesterov"])
def test_it_learns_on_whatever_it_makes_of_the_noise(name, page):
    """Distance to the truth over that of zeros, mean of 20 runs; the correlated noise is long.

    There it is 0.78 with a standard deviation of 0.17 a run: the mean is above 0.95 by chance once
    in 100,000 times.
    """
    slope, distances = page("lines").SLOPE, []
    experiment = load_experiment(f"{name}:experiment")
    made = build(experiment, None)
    for seed in range(20):
        *_, (_, state) = rounds(made, serial(experiment, made), Key.simulation(seed))
        distances.append(np.linalg.norm(state.params["w"] - slope))
    assert np.mean(distances) < (0.95 if name == "stream" else 0.7) * np.linalg.norm(slope)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["simulation", "secure"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_it_goes_on_after_a_kill(name, mode):
    prepared = start(name, "run", secure=mode == "secure")
    with killed_after(4, "charge", "row"):
        prepared.run()
    summary = resume_run(Path("run")).run()
    found = verify_run("run")
    assert found.ok, found
    # One attempt was lost, and is spent; the plan pays for ten.
    assert summary["rounds"] == 9 and summary["epsilon"] == found.epsilon.value


@pytest.mark.slow
def test_a_run_of_a_new_kind_of_event_is_read_once_its_file_is_loaded(page, monkeypatch):
    prepared = start("twice", "run")
    with killed_after(4, "charge"):
        prepared.run()
    kind = "gaussian-and-laplace"
    monkeypatch.setitem(FIELDS, kind, FIELDS[kind])
    monkeypatch.setattr(accounting, "_ADDED", dict(accounting._ADDED))
    for base in (Privatizer, Noise):
        monkeypatch.setattr(base, "kinds", dict(base.kinds))

    def forget():
        del FIELDS[kind], accounting._ADDED[kind]
        del Privatizer.kinds["Twice"], Noise.kinds["TwiceNoise"]
        for module in [name for name in sys.modules if name.partition("_")[0] == "twice"]:
            del sys.modules[module]

    forget()
    for name in ("verify", "status", "report"):
        told = command(name, "run")
        assert told.exit_code and repr(kind) in told.output, name
    assert command("--load", "twice.py", "verify", "run").exit_code == 0
    forget()
    done = command("run", "twice:experiment", "--resume", "run")
    assert done.exit_code == 0, done.stderr
    assert command("verify", "run").exit_code == 0


@pytest.mark.parametrize("name", ["lines", "proximal", "largest"])
def test_a_mistake_in_what_users_do_ends_the_run_before_anything_is_charged(name):
    owner = "proximal" if name == "proximal" else "lines"
    source = Path(f"{owner}.py").read_text("utf-8")
    assert source.count("x[batch].T @") == 1
    Path(f"{owner}.py").write_text(source.replace("x[batch].T @", "x[batch] @"), "utf-8")
    with refuses(ValueError, "matmul"):
        start(name, "run")
    assert not Path("run").exists()


@pytest.mark.slow
def test_a_task_that_makes_no_examples_is_told_so_in_the_run_s_first_lines():
    source = Path("lines.py").read_text("utf-8")
    assert source.count("def synthetic_batch(self)") == 1
    source = source.replace("def synthetic_batch(self)", "def other_examples(self)")
    Path("lines.py").write_text(source, "utf-8")
    said = command("run", "lines:experiment", "--out", "run").stderr.splitlines()
    assert sum("synthetic_batch()" in line for line in said[:6]) == 1
    assert "could not be tried" in start("largest", "other").cautions[0]  # made of the same task


def test_a_local_option_is_an_option_of_the_experiment_and_reaches_workers():
    plain = load_experiment("proximal:experiment")
    assert plain.options()["task.pull"] == 0.1
    changed = plain.with_options({"pull": 3})
    opened = open_worker("proximal:experiment", changed.options(), None, "cpu")
    assert opened._works["train"].pull == 3
    free, pulled = (trained(plain.with_options({"pull": pull}))["w"] for pull in (0.0, 3.0))
    assert np.linalg.norm(pulled) < 0.9 * np.linalg.norm(free)


def trained(experiment):
    """One user's update."""
    made = build(experiment, None)
    start, user = made.task.init_params(Key.simulation(0)), made.task.roster[3]
    return made.trainer.train(start, NO_CONTEXT, made.task.data.examples(user), Key.simulation(1))


@pytest.mark.slow
def test_discrete_noise_has_the_distribution_it_says(page):
    """2,000 draws at stddev 3 against the exact probabilities; chi-square, false alarm 1e-4."""
    from scipy import stats

    discrete_gaussian, number = page("discrete").discrete_gaussian, 2_000
    bits = Key.simulation(5).generator()
    drawn = Counter(discrete_gaussian(3, bits) for _ in range(number))
    values = np.arange(-60, 61)
    exact = np.exp(-(values**2) / 18.0)
    exact /= exact.sum()
    inner = np.abs(values) <= 8
    seen = [drawn[int(v)] for v in values[inner]]
    expected = [*(number * exact[inner]), number * exact[~inner].sum()]
    assert stats.chisquare([*seen, number - sum(seen)], expected).pvalue > 1e-4


def test_a_new_kind_of_cost_is_accounted_as_its_two_answers_are(page):
    page("twice")
    both = Event(kind="gaussian-and-laplace", noise_multiplier=5.0, epsilon=0.2)
    apart = [
        (Event(kind="gaussian", noise_multiplier=5.0), 10),
        (Event(kind="pure", epsilon=0.2), 10),
    ]
    for relation in Relation:
        told = {"delta": 1e-3, "relation": relation}
        found = epsilon(both, 10, **told).value
        # Laplace noise is a pure answer, of a loss that is seldom as large.
        assert epsilon(Event(kind="gaussian", noise_multiplier=5.0), 10, **told).value < found
        assert found < epsilon_of(apart, **told).value
    assert Event.from_json(both.to_json()) == both
    with refuses(ValueError, "RDP"):
        replace(build(load_experiment("twice:experiment"), None).plan, trials=Trials(mean=10.0))


def test_discrete_noise_is_of_integers_and_promises_no_more_than_it_can(page):
    experiment = load_experiment("discrete:experiment")
    mechanism = build(experiment, None).plan.live_mechanism
    assert mechanism.event.kind == "zcdp" and mechanism.event.rho == 0.02
    template, grid = {"w": np.zeros((2, 3), np.float32)}, mechanism.bound.granularity
    bound = mechanism.l2_bound
    total = PartialSum(
        total={"w": np.full((2, 3), 7, np.int32)}, num_users=1, granularity=grid, l2_bound=bound
    )
    drawn = mechanism.draw(template, Key.simulation(1)).take(total, mechanism)
    assert drawn["w"].dtype == np.int64 and drawn["w"].shape == (2, 3)
    spread = np.abs(drawn["w"]).mean() * grid  # of six draws: 4 for stddev 5, give or take 1.2
    assert 0.5 < spread < 12
    answer = mechanism.release(total, mechanism.draw(template, Key.simulation(1)))["w"]
    steps = answer.astype(np.float64) * mechanism.denominator / grid
    np.testing.assert_allclose(steps, drawn["w"] + 7, rtol=1e-6)
    with refuses(ValueError, None):
        mechanism.release(
            replace(total, granularity=None), mechanism.draw(template, Key.simulation(1))
        )
    for change, name in (({"cohort": 20}, "zcdp"), ({"exact-sum": False}, "exact-sum")):
        with refuses(ValueError, name):
            build(experiment.with_options(change), None)
    replaced = build(experiment.with_options({"relation": "replace-one"}), None).plan
    assert replaced.total().value > 1.5 * build(experiment, None).plan.total().value


class Nobody(Backend):
    """A backend whose sums are zero, so that what is released is the noise; it notes cohorts."""

    trains_again = False  # who trains twice in a round is in no cohort more

    def __init__(self, components, cohorts):
        self.oracle = SerialBackend(trainer=components.trainer, data=components.task.data)
        self.cohorts = cohorts

    def sum(self, request, attempt, cohort):
        self.cohorts.append(set(cohort))
        return self.oracle.sum(request, attempt, ())

    def describe(self):
        return {"name": "nobody"}


def noise_of(out, page, kills=(), *, secure=False):
    """Return the noise of every released row, and the cohorts; killed and resumed at the lines."""
    released, cohorts, noise = [], [], page("stream").TakenBack
    release = noise.release

    def seen(self, total, drawn, share):
        answer = release(self, total, drawn, share)
        released.append(answer["w"].copy())
        return answer

    def nobody(experiment, components):
        return Nobody(components, cohorts)

    prepared = start("stream", out, make_backend=nobody, secure=secure)
    for line in (*kills, None):
        with pytest.MonkeyPatch.context() as patch:  # of the run alone: the trial releases, too
            patch.setattr(noise, "release", seen)
            with nullcontext() if line is None else killed_after(line, "charge", "row"):
                prepared.run()
        if line is not None:
            prepared = resume_run(Path(out), make_backend=nobody)
    return released, cohorts


@pytest.mark.slow
def test_every_row_takes_back_half_of_the_one_before(page):
    noise, _ = noise_of("run", page)
    fresh = np.array([noise[0], *(late + 0.5 * early for early, late in pairwise(noise))])
    # z is independent from row to row: of 72 pairs their correlation is below 0.45, but
    # for a chance of 1e-4. That of w is about -1/2, and not above 0 but for a chance of 1e-5.
    assert abs(np.corrcoef(fresh[1:].ravel(), fresh[:-1].ravel())[0, 1]) < 0.45
    assert np.corrcoef(np.array(noise)[1:].ravel(), np.array(noise)[:-1].ravel())[0, 1] < 0


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize(
    ("kills", "discarded"), [([1], []), ([2], [1]), ([5], [4]), ([4, 3], [3, 6]), ([3, 1], [2, 3])]
)
def test_no_row_of_the_stream_meets_two_sums(kills, discarded, secure, page, one_root):
    noise, cohorts = noise_of("run", page, kills, secure=secure)
    _, ledger, _ = read_ledger("run/ledger.jsonl")
    assert [row.row for row in ledger.rows] == list(range(1, 11)) and len(ledger.charges) == 1
    used = [release.attempt for release in ledger.releases]
    assert used == [row for row in range(1, 11) if row not in discarded]
    assert len(noise) == len(used) == len({array.tobytes() for array in noise})
    if not secure:  # each release has the noise of its own row
        whole, _ = noise_of("whole", page)
        np.testing.assert_array_equal(noise, [whole[row - 1] for row in used])
    # Nobody took part more than twice, nor in two rows that follow each other.
    assert max(Counter(user for cohort in cohorts for user in cohort).values()) == 2
    assert not any(early & late for early, late in pairwise(cohorts))
    kept = {path.name: path.stat().st_mode & 0o777 for path in Path("run/secret").iterdir()}
    assert set(kept.values()) == {0o600}
    assert set(kept) == {"rows.safetensors"} | ({"stream.key"} if secure else set())


def test_the_price_of_the_stream_is_that_of_its_worst_user():
    """The whole run is one Gaussian answer: C x + z, with C of the page's two bands."""
    made = build(load_experiment("stream:experiment"), None)
    mechanism, num_rows = made.plan.live_mechanism, made.plan.num_rounds
    noise, sampler = mechanism.privatizer, mechanism.sampler
    assert made.plan.charged_once and noise.max_participations == sampler.max_participations
    bands = np.eye(num_rows) + noise.back * np.eye(num_rows, k=-1)
    moved = (
        max(
            np.linalg.norm(bands[:, [one, other]].sum(axis=1))
            for one in range(num_rows)
            for other in range(one + 2, num_rows)
        )
        * mechanism.l2_bound
    )
    template = {"w": np.zeros(4_000, np.float32)}
    given = {"template": template, "sensitivity": mechanism.sensitivity}
    first = next(noise.draws(**given, key=Key.simulation(0)))
    # The standard deviation of 4,000 draws is right to 1.1 %; 5 % is 4.5 standard deviations.
    assert np.std(first["w"]) == pytest.approx(mechanism.noise_multiplier * moved, rel=0.05)


@pytest.fixture
def by_name(page, monkeypatch):
    """The page's backend under its name, as an entry of the table makes it one."""

    @contextmanager
    def opened(request, tell):
        yield lambda reference, corpus_path: page("children").children

    monkeypatch.setitem(BACKENDS, "children", NamedBackend(open=opened))


@pytest.mark.slow
@pytest.mark.parametrize("exact", [True, False])
def test_a_backend_equals_the_oracle(page, by_name, exact):
    """Law: every backend of the table gives the params of the serial one."""
    last_params = page("children").last_params
    experiment = load_experiment("lines:experiment").with_options({"exact-sum": exact})
    components = build(experiment, None)
    found = {}
    for name in ("serial", "children"):
        with (
            named_backends(name) as factories,
            closing(factories(None, None)(experiment, components)) as backend,
        ):
            found[name] = last_params(components, backend)["w"]
    np.testing.assert_allclose(found["children"], found["serial"], rtol=1e-6)
    assert not exact or np.array_equal(found["children"], found["serial"])


@pytest.mark.slow
def test_it_is_a_name_of_the_command(by_name):
    found = figures("run", "lines:experiment", "--out", "run", "--backend", "children")
    assert found["backend"]["name"] == "children" and found["squared_error_public"] is not None
    assert verify_run("run").ok
