"""A training of one's own, perturbed once: distances, books, crashes, and what is refused."""

import json

import numpy as np
import pytest
import torch

import fedpriv as fp
from fedpriv.privacy.statement.coverage import FLOATS, KEY
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.secret_state import SecretState
from fedpriv.training.permutation_sgd import shortened
from fedpriv.training.wrapped_sgd import Wrapped
from tests.harness.kills import killed
from tests.harness.refusals import refuses

NUMBER, WIDTH = 40, 3
LOGISTIC = fp.loss_constants("logistic", regulariser=0.05)
START = {"w": np.zeros(WIDTH)}


def people(seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(NUMBER, WIDTH)) * 5, rng.choice([-1, 1], NUMBER)


def trainer(x, y, present=None, decay=0.05, radius=None, average=False):
    """Mini-batch SGD of logistic regression, as somebody has it."""
    present = np.ones(len(y)) if present is None else present

    def train(walk):
        w, seen = walk.start["w"], []
        for positions, rate in walk:
            rows = walk.shortened(x[positions]) * present[positions, None]
            signs = y[positions]
            slopes = -signs / (1 + np.exp(signs * (rows @ w)))
            w = w - rate * (decay * w + slopes @ rows / walk.batch_size)
            if radius is not None and np.linalg.norm(w) > radius:
                w *= radius / np.linalg.norm(w)
            seen.append(w)
        return {"w": np.mean(seen, axis=0) if average else w}

    return train


def release(train=None, constants=LOGISTIC, passes=2, schedule=0.5, **options):
    given = {"num_rows": NUMBER, "params": START, "target_epsilon": 1.0, **options}
    return fp.bolt_on(train or trainer(*people()), constants, passes, schedule, **given)


@pytest.fixture
def ends(monkeypatch, one_root):
    """Where trainings end, before any noise."""
    found, real = [], Wrapped.answer

    def seen(self, *asked):
        total = real(self, *asked)
        found.append(total.total["w"])
        return total

    monkeypatch.setattr(Wrapped, "answer", seen)
    return found


STRONG = fp.StronglyConvexStep()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "options"),
    [
        (0.5, {}),
        (3.0, {"batch_size": 7}),
        (3.0, {"batch_size": 7, "last_batch": "divided"}),
        (STRONG, {"batch_size": 6, "last_batch": "divided", "radius": 2.0}),
        (STRONG, {"average": True, "relation": "add-remove"}),
        (fp.PowerStep(rate=2.0, exponent=0.3), {"relation": "add-remove"}),
    ],
    ids=str,
)
def test_measured_distances_never_pass_the_bound(ends, schedule, options):
    own = {name: options[name] for name in ("radius", "average") if name in options}
    for case in range(3):
        x, y = people(case)
        made = release(trainer(x, y, **own), passes=3, schedule=schedule, **options)
        for who in range(0, NUMBER, 5):
            present, others, elsewhere = np.ones(NUMBER), y.copy(), x.copy()
            if options.get("relation") == "add-remove":
                present[who] = 0.0
            else:
                others[who] *= -1
                elsewhere[who] = elsewhere[who][::-1] * 100
            train = trainer(elsewhere, others, present, **own)
            release(train, passes=3, schedule=schedule, **options)
            assert np.linalg.norm(ends[-1] - ends[0]) <= made.moved.sensitivity
        ends.clear()


@pytest.mark.parametrize("last_batch", ["dropped", "divided"])
def test_an_extreme_row_refutes_half_of_the_bound(ends, last_batch):
    """One that all others contradict: there, and not there."""
    x, y = np.tile([30.0, 0, 0], (NUMBER, 1)), np.ones(NUMBER)
    y[0] = -1
    far = {"w": np.array([30.0, 0, 0])}
    options = {
        "batch_size": 7,
        "last_batch": last_batch,
        "relation": "add-remove",
        "params": far,
        "seed": 1,
    }
    constants = fp.loss_constants("logistic")
    made = release(trainer(x, y, decay=0.0), constants, 2, 2.0, **options)
    release(trainer(x, y, np.arange(NUMBER) > 0, decay=0.0), constants, 2, 2.0, **options)
    distance, bound = np.linalg.norm(ends[0] - ends[1]), made.moved.sensitivity
    assert bound == pytest.approx(2 * 2.0 / 7)
    assert 0.9 * bound < distance <= bound


@pytest.mark.slow
def test_noise_is_of_the_bound_and_the_statement_says_so(ends):
    """Sphere and Gaussian, 100 releases each: E‖κ‖ = dΔ/ε, and E‖κ‖² = dσ²Δ², within six standard
    errors (false alarms below 1e-8)."""
    for delta in (None, 1e-5):
        lengths = []
        for seed in range(100):
            made = release(passes=1, schedule=0.5, target_epsilon=2.0, delta=delta, seed=seed)
            lengths.append(np.linalg.norm(made.params["w"] - ends.pop()))
        moved = made.moved
        assert (moved.lipschitz, moved.paper_lipschitz) == (1.0, 2.0)
        assert moved.paper_sensitivity == pytest.approx(2 * moved.sensitivity)
        if delta is None:
            mean, spread = WIDTH * moved.sensitivity / 2, WIDTH**0.5 * moved.sensitivity / 2
            assert made.epsilon.value == pytest.approx(2.0) and made.epsilon.delta == 0.0
            assert np.mean(lengths) == pytest.approx(mean, abs=6 * spread / 10)
        else:
            assert 1.99 < made.epsilon.value <= 2.0 and made.epsilon.delta == 1e-5
            # Calibrated to ε = 2 at δ = 1e-5: σ is 1.9939 of what replacing one moves it by.
            square = WIDTH * (1.9939 * moved.sensitivity) ** 2
            error = square * (2 / WIDTH) ** 0.5 / 10
            assert np.mean(np.square(lengths)) == pytest.approx(square, abs=6 * error)
        said = repr(made)
        assert "simulated ε" in said and "replace-one" in said and "does NOT cover" in said


def test_a_folder_keeps_the_books_and_is_read_again(tmp_path):
    made = release(out=tmp_path / "run", secure=True)
    assert not made.simulated and "floating point" in repr(made)
    found = verify_run(tmp_path / "run")
    assert found.ok and (found.num_charges, found.num_lost) == (1, 0)
    first = json.loads((tmp_path / "run" / "ledger.jsonl").read_text().splitlines()[0])
    assert "logistic" in json.dumps(first)

    def never(walk):
        raise AssertionError("a run that has released is only read")

    again = release(never, out=tmp_path / "run", secure=True)
    assert np.array_equal(again.params["w"], made.params["w"])
    # Another loss of the same Δ.
    with pytest.raises(ValueError):
        other = fp.Constants(name="else", lipschitz=1.0, smoothness=0.3, convexity=0.05)
        release(never, constants=other, out=tmp_path / "run", secure=True)
    with pytest.raises(ValueError):
        release(never, target_epsilon=2.0, out=tmp_path / "run", secure=True)


def test_a_training_that_is_cut_off_is_charged_and_done_again(tmp_path):
    walks = []

    def cut_off(walk):
        walks.append(walk)
        raise SystemExit

    def again(walk):
        walks.append(walk)
        return trainer(*people())(walk)

    with pytest.raises(SystemExit):
        release(cut_off, out=tmp_path / "run", secure=True)
    assert b'"charge"' in (tmp_path / "run" / "ledger.jsonl").read_bytes()
    release(again, out=tmp_path / "run", secure=True)
    assert walks[0].seed == walks[1].seed
    assert np.array_equal(walks[0].orders[0], walks[1].orders[0])
    found = verify_run(tmp_path / "run")
    assert found.ok and (found.num_charges, found.num_lost) == (1, 0)


NET = torch.nn.Linear(3, 1)


class TestRefusals:
    @pytest.mark.parametrize("train", [NET, NET.forward], ids=["module", "method"])
    def test_a_torch_module_is_not_convex_for_all_we_know(self, train, tmp_path):
        with refuses(ValueError, "Linear"):
            release(train, out=tmp_path / "run")
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"constants": "hinge"}, ("hinge",)),
            ({"constants": "relu"}, ("relu",)),
            ({"constants": 1.0}, (1.0, "loss_constants")),
            ({"schedule": 5.0}, (5, "1/β")),
            ({"passes": 0}, ()),
            ({"batch_size": 41}, ("batch_size", 41)),
            ({"target_epsilon": 0.0}, ("target_epsilon",)),
            ({"secure": True}, ("secure", "out=")),
            ({"anchor": "somewhere"}, ("out=",)),
            ({"num_rows": 0}, ("num_rows",)),
            ({"params": {}}, ()),
            ({"schedule": "fast"}, ("rate",)),
            ({"last_batch": "mean"}, ("last_batch", "mean")),
        ],
        ids=str,
    )
    def test_what_does_not_fit(self, options, said):
        with refuses(ValueError, *said):
            release(**options)

    def test_what_is_no_training(self):
        with pytest.raises(ValueError):
            release(train=[1])

        class Estimator:
            def partial_fit(self, x, y):
                return self

            __call__ = partial_fit

        for estimator in (Estimator(), Estimator().partial_fit):
            with pytest.raises(ValueError):
                release(train=estimator)

    @pytest.mark.parametrize(
        ("result", "said"),
        [
            ({"v": np.zeros(3)}, ()),
            (np.zeros(3), ("ndarray",)),
            ({"w": np.zeros(4)}, ("w", 4, 3)),
            ({"w": np.zeros(3, np.float32)}, ("float64",)),
            ({"w": np.full(3, np.nan)}, ()),
            ({"w": np.full(3, 1e3)}, ()),
        ],
        ids=["names", "array", "shape", "float32", "nan", "far"],
    )
    def test_a_result_of_no_such_training_is_not_released(self, result, said, tmp_path):
        with refuses(ValueError, *said):
            release(lambda walk: result, out=tmp_path / "run")
        assert not (tmp_path / "run" / "checkpoints").exists()

    def test_rows_that_nobody_shortened_are_noticed(self):
        x, y = people()

        def careless(walk):
            w = walk.start["w"]
            for [i], rate in walk:
                w = w - rate * (0.05 * w - y[i] * x[i] * 1e3 / (1 + np.exp(y[i] * (x[i] @ w))))
            return {"w": w}

        with np.errstate(over="ignore"), refuses(ValueError, "walk.shortened"):
            release(careless)


def test_rows_are_shortened_and_none_is_refused():
    from scipy import sparse

    rows = np.array([[3.0, 4.0], [0.3, 0.4], [np.nan, 1], [np.inf, 0], [0, 0], [1e300, 1e300]])
    found = shortened(rows)
    assert np.allclose(found[:2], [[0.6, 0.8], [0.3, 0.4]])
    assert (found[2:] == 0).all()  # the last has no finite norm
    assert (np.linalg.norm(found, axis=1) <= 1).all()
    assert np.array_equal(shortened(sparse.csr_matrix(rows)).toarray(), found)
    assert np.allclose(shortened(rows[0], 2.0), [1.2, 1.6])
    assert 0.99 < np.linalg.norm(shortened(np.array([1e153, 1e153]))) <= 1
    assert np.array_equal(shortened(np.array([5e-324, 0])), [5e-324, 0])


OWN = "a training that is not the permutation SGD that was stated"
TAKEN = "whatever else your own code took from these rows"
EMPTY = "how many rows there are: one that is not there leaves its place empty"


def test_the_folder_says_what_the_release_said(tmp_path):
    made = release(out=tmp_path / "run", secure=True)
    found = verify_run(tmp_path / "run").coverage
    assert found.not_covered == made.epsilon.not_covered
    assert any(said.startswith(OWN) for said in found.not_covered)
    assert {TAKEN, FLOATS} < set(found.not_covered)
    assert "experiment.json" not in found.mark
    [line] = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    assert json.loads(line)[KEY] == list(found.not_covered)
    simulated = release(out=tmp_path / "other")
    assert verify_run(tmp_path / "other").coverage.not_covered == simulated.epsilon.not_covered
    assert FLOATS not in simulated.epsilon.not_covered


def test_add_remove_says_that_the_place_stays_empty(tmp_path):
    made = release(relation="add-remove", out=tmp_path / "run")
    assert EMPTY in repr(made) and EMPTY in verify_run(tmp_path / "run").coverage.mark
    assert EMPTY not in repr(release())


def test_a_training_cannot_lengthen_the_path_that_its_end_is_held_against():
    """Steps a million times longer, and an end where they might lead."""

    def cheating(walk):
        rates = walk.rates
        rates *= 1e6
        return {"w": np.full(3, 1e3)}

    def turned(walk):
        walk.rates.flags.writeable = True
        walk.rates[:] = 1e6
        return {"w": np.full(3, 1e3)}

    def shuffled(walk):
        walk.orders[0][:] = 0
        return {"w": walk.start["w"]}

    for train in (cheating, shuffled):
        with refuses(ValueError, "read-only"):
            release(train, target_epsilon=1e9)
    with pytest.raises(ValueError):
        release(turned, target_epsilon=1e9)


@pytest.mark.parametrize("epsilon", [1e300, 1e308])
def test_an_epsilon_of_any_size_is_printed(epsilon):
    assert "ε = " in repr(release(target_epsilon=epsilon))


def left(secret):
    return {path.name: path.read_bytes() for path in secret.iterdir()}


def test_nothing_secret_stays_once_the_release_is_on_the_ledger(tmp_path):
    release(out=tmp_path / "run", secure=True)
    assert left(tmp_path / "run" / "secret") == {"replay.key": b""}
    release(out=tmp_path / "other")
    assert not (tmp_path / "other" / "secret").exists()  # of a simulation nothing was secret
    release(out=tmp_path / "run", secure=True)  # it is read again all the same
    assert verify_run(tmp_path / "run").ok


def test_it_stays_while_a_release_is_owed(tmp_path):
    """Killed before it is kept, the identical release is made for the same charge."""
    secret, owed = tmp_path / "run" / "secret", []

    def noted(folder, state):
        owed.append(state.params["w"])
        return True

    with killed(RunFolder, "keep", when=noted):
        release(out=tmp_path / "run", secure=True)
    assert set(left(secret)) == {"replay.key", "replay-update.safetensors"}
    assert len(left(secret)["replay.key"]) == 32
    with pytest.raises(ValueError):
        release(trainer(*people(1)), out=tmp_path / "run", secure=True)
    assert len(left(secret)["replay.key"]) == 32
    made = release(out=tmp_path / "run", secure=True)
    assert np.array_equal(made.params["w"], owed[0])
    assert verify_run(tmp_path / "run").num_charges == 1
    assert left(secret) == {"replay.key": b""}


def test_what_a_kill_left_after_the_release_goes_with_the_next_look(tmp_path):
    with killed(SecretState, "forget"):
        release(out=tmp_path / "run", secure=True)
    assert left(tmp_path / "run" / "secret")["replay.key"]
    release(out=tmp_path / "run", secure=True)
    assert left(tmp_path / "run" / "secret") == {"replay.key": b""}
