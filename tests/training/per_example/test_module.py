"""Bounded sums over single examples: every backend agrees, and the laws of the bound hold."""

import logging

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedpriv import tree
from fedpriv.mechanisms.bound import Clip, Mixture, Normalise, Preconditioned, Unbounded
from fedpriv.mechanisms.rounding import Rounded
from fedpriv.models import Autoencoder, DigitClassifier, ResNet20, SoftmaxRegression, TextLSTM
from fedpriv.rng import Key
from fedpriv.training.local.module import load_params, module_params
from fedpriv.training.per_example.ghost.masks import ExampleMasks
from fedpriv.training.per_example.module import ModuleGradients

KEY = Key.simulation(5)
CLASSES, NUM = 4, 11


class Sequences(nn.Module):
    """Embedding with a padding word, dense layers over time, layer norm, one layer twice."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(17, 6, padding_idx=0)
        self.norm = nn.LayerNorm(6)
        self.twice = nn.Linear(6, 6)
        self.wide = nn.Linear(6, 40)
        self.head = nn.Linear(40, CLASSES)

    def forward(self, ids):
        hidden = self.norm(self.words(ids))
        hidden = torch.tanh(self.twice(torch.tanh(self.twice(hidden))))
        return self.head(torch.tanh(self.wide(hidden)).mean(1))


class Partly(nn.Module):
    """A frozen layer below, dropout, and a parameter's layer that the loss never sees."""

    def __init__(self):
        super().__init__()
        self.below = nn.Linear(12, 6).requires_grad_(False)
        self.above = nn.Linear(6, CLASSES, bias=False)
        self.unused = nn.Linear(2, 3)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.above(self.drop(torch.tanh(self.below(x))))


def convolutions():
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, stride=2, padding=1, bias=False),
        nn.GroupNorm(3, 6),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 4, (3, 2), groups=2, dilation=(1, 2), padding=(0, 2)),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.LazyLinear(CLASSES),
    )


def floats(*shape):
    return lambda rng: rng.normal(size=(NUM, *shape)).astype(np.float32)


def words(length, number):
    return lambda rng: rng.integers(0, number, (NUM, length))


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(12, 9), nn.Tanh(), nn.Linear(9, CLASSES)), floats(12)),
    "linear": (lambda: nn.Linear(12, CLASSES), floats(12)),
    "softmax regression": (lambda: SoftmaxRegression(12, CLASSES), floats(12)),
    "convolutions": (convolutions, floats(2, 8, 8)),
    "sequences": (Sequences, words(3, 17)),
    "long sequences": (Sequences, words(30, 17)),
    "partly frozen": (Partly, floats(12)),
    "lstm": (lambda: TextLSTM(20, CLASSES, width=5), words(6, 20)),
    "resnet": (lambda: ResNet20(CLASSES), floats(3, 8, 8)),
    "digits": (lambda: DigitClassifier(CLASSES), floats(784)),
}


def cross_entropy(outputs, targets):
    return functional.cross_entropy(outputs, targets)


def built(name, **options):
    make, draw = MODELS[name]
    torch.manual_seed(2)
    rng = np.random.default_rng(3)
    module, x = make(), draw(rng)
    module(torch.from_numpy(x[:2]))  # lazy layers
    y = rng.integers(0, CLASSES, NUM)
    gradients = ModuleGradients(module, cross_entropy, x, y, **options)
    return gradients, {n: p + np.float32(0.01) for n, p in module_params(module).items()}


def autoencoder(**options):
    torch.manual_seed(2)
    module = Autoencoder((20, 12, 7, 3))
    x = np.random.default_rng(3).random((NUM, 20), np.float32)
    return ModuleGradients(module, functional.mse_loss, x, x, **options), module_params(module)


def preconditioned(params, bound, *, multiplied=True, mixed=True):
    rng = np.random.default_rng(9)
    offset = {n: rng.normal(size=p.shape).astype(np.float32) * 0.1 for n, p in params.items()}
    return Preconditioned(
        multiplier={n: rng.uniform(0.01, 30, p.shape).astype(np.float32) for n, p in params.items()}
        if multiplied
        else {},
        bound=bound,
        mixture=Mixture(own=0.9, offset=offset) if mixed else None,
    )


def bounds_of(params):
    yield Clip(l2_clip_norm=0.7)
    yield Clip(l2_clip_norm=50.0)
    yield Normalise(l2_clip_norm=0.7, regulariser=0.01)
    yield Unbounded()
    yield preconditioned(params, Clip(l2_clip_norm=0.7), mixed=False)
    yield preconditioned(params, Clip(l2_clip_norm=0.7), multiplied=False)
    yield preconditioned(params, Normalise(l2_clip_norm=0.7))
    yield preconditioned(params, Unbounded())


def gap(left, right):
    """The distance of two trees, relative to the second's length."""
    difference = {n: left[n] - right[n] for n in right}
    return tree.l2_norm(difference) / max(tree.l2_norm(right), 1e-12)


EVERYBODY = np.arange(NUM)
SOME = EVERYBODY[::3]  # whom to look at alone, where every example costs a pass


def test_each_model_goes_the_quick_way():
    assert {name: built(name)[0].backend for name in MODELS} == dict.fromkeys(MODELS, "factored")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n == "resnet" else n for n in MODELS]
)
@pytest.mark.parametrize("other", ["vmap", "loop"])
def test_every_way_finds_the_same(name, other):
    quick, params = built(name, backend="factored")
    slow, _ = built(name, backend=other)
    index = np.array([8, 2, 10, 3, 0, 7])
    for bound in bounds_of(params):
        expected = slow.bounded_sum(params, index, bound, KEY)
        found = quick.bounded_sum(params, index, bound, KEY)
        assert gap(found, expected) < 1e-5, bound
        assert all(a.dtype == np.float64 and a.shape == params[n].shape for n, a in found.items())


@pytest.mark.parametrize("name", ["mlp", "sequences", "lstm", "convolutions"])
@pytest.mark.parametrize("backend", ["factored", "vmap"])
def test_an_example_alone_is_bounded_as_its_update_is(name, backend):
    gradients, params = built(name, backend=backend)
    for bound in bounds_of(params):
        raw = gradients.bounded_sum(params, np.array([4]), Unbounded(), KEY)
        update = {n: a.astype(np.float32) for n, a in raw.items()}
        found = gradients.bounded_sum(params, np.array([4]), bound, KEY)
        assert gap(found, bound.apply(update)) < 1e-5, bound


@pytest.mark.parametrize("backend", ["factored", "vmap", "loop"])
def test_the_sum_without_a_bound_is_minus_the_gradient(backend):
    gradients, params = built("mlp", backend=backend)
    total = gradients.bounded_sum(params, EVERYBODY, Unbounded())
    mean = gradients.gradient(params, EVERYBODY)
    assert all(a.dtype == np.float32 for a in mean.values())
    assert gap({n: -a / NUM for n, a in total.items()}, mean) < 1e-6

    module = load_params(MODELS["mlp"][0](), params)
    x, y = MODELS["mlp"][1](np.random.default_rng(3)), gradients._y
    cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(y)).backward()
    assert gap(mean, {n: p.grad.numpy() for n, p in module.named_parameters()}) < 1e-6


def test_mean_gradient_does_not_depend_on_chunks():
    whole, params = built("mlp")
    parts, _ = built("mlp", chunk=4)
    left, right = whole.gradient(params, EVERYBODY), parts.gradient(params, EVERYBODY)
    assert gap(left, right) < 1e-6


@pytest.mark.parametrize("name", ["mlp", "long sequences", "convolutions", "lstm"])
@pytest.mark.parametrize("backend", ["factored", "vmap"])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_no_example_leaves_the_bound(name, backend, scale):
    gradients, params = built(name, backend=backend)
    steep = {n: p * np.float32(scale) for n, p in params.items()}
    for bound in bounds_of(params):
        for position in SOME:
            one = gradients.bounded_sum(steep, np.array([position]), bound, KEY)
            assert tree.l2_norm(one) <= bound.l2_bound


@pytest.mark.parametrize("name", ["mlp", "sequences", "convolutions", "partly frozen", "lstm"])
@pytest.mark.parametrize("backend", ["factored", "vmap", "loop"])
def test_leaving_one_out_moves_the_sum_by_what_it_contributes(name, backend):
    gradients, params = built(name, backend=backend)
    bound = preconditioned(params, Clip(l2_clip_norm=0.7))
    total = gradients.bounded_sum(params, EVERYBODY, bound, KEY)
    singles = [gradients.bounded_sum(params, np.array([i]), bound, KEY) for i in EVERYBODY]
    assert gap({n: sum(one[n] for one in singles) for n in params}, total) < 1e-6
    for left_out in SOME:
        others = gradients.bounded_sum(params, np.delete(EVERYBODY, left_out), bound, KEY)
        moved = {n: total[n] - others[n] for n in params}
        assert tree.l2_norm(moved) <= 0.7 * (1 + 1e-6)
        assert gap(moved, singles[left_out]) < 1e-5


@pytest.mark.parametrize("name", ["mlp", "sequences", "convolutions", "lstm"])
@pytest.mark.parametrize("backend", ["factored", "vmap", "loop"])
def test_chunks_do_not_matter(name, backend):
    whole, params = built(name, backend=backend)
    bound = preconditioned(params, Clip(l2_clip_norm=0.7))
    expected = whole.bounded_sum(params, EVERYBODY, bound, KEY)
    for chunk in (1, 3, 5, 100):
        parts, _ = built(name, backend=backend, chunk=chunk)
        assert gap(parts.bounded_sum(params, EVERYBODY, bound, KEY), expected) < 1e-6


@pytest.mark.parametrize("backend", ["factored", "vmap", "loop"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_what_is_not_finite_contributes_zero_alone(backend, bad, caplog):
    gradients, params = built("mlp", backend=backend)
    bound = preconditioned(params, Clip(l2_clip_norm=0.7))
    gradients._x[3] = bad
    if bad == 3e38:  # finite inputs, saturated layers: only the products overflow
        params = {n: p * np.float32(1e20) for n, p in params.items()}
    with caplog.at_level(logging.WARNING):
        found = gradients.bounded_sum(params, EVERYBODY, bound)
    assert all(np.isfinite(a).all() for a in found.values())
    expected = gradients.bounded_sum(params, np.delete(EVERYBODY, 3), bound)
    assert gap(found, expected) < 1e-6
    assert {r.getMessage() for r in caplog.records} == {"a user contributes zero: ValueError"}


def test_a_group_with_such_an_example_contributes_zero():
    gradients, params = built("mlp")
    bound = Clip(l2_clip_norm=0.7)
    gradients._x[3] = np.nan
    groups = [np.array([0, 1]), np.array([2, 3]), np.array([4])]
    expected = gradients.grouped_sum(params, [groups[0], groups[2]], bound)
    assert gap(gradients.grouped_sum(params, groups, bound), expected) < 1e-6


@pytest.mark.parametrize("backend", ["factored", "vmap", "loop"])
def test_an_empty_batch_gives_zeros(backend):
    gradients, params = built("mlp", backend=backend)
    nobody = np.array([], np.int64)
    bound = preconditioned(params, Clip(l2_clip_norm=0.7))
    for total in (
        gradients.bounded_sum(params, nobody, bound),
        gradients.grouped_sum(params, [], bound),
    ):
        assert all(not a.any() and a.shape == params[n].shape for n, a in total.items())
    with pytest.raises(ValueError, match="no examples"):
        gradients.gradient(params, nobody)


def test_ones_are_no_preconditioner_bit_for_bit():
    for name in MODELS:
        gradients, params = built(name)
        plain = Clip(l2_clip_norm=0.7)
        ones = {n: np.ones(p.shape, np.float32) for n, p in params.items()}
        left = gradients.bounded_sum(params, EVERYBODY, plain, KEY)
        right = gradients.bounded_sum(
            params, EVERYBODY, Preconditioned(multiplier=ones, bound=plain), KEY
        )
        assert all(np.array_equal(left[n], right[n]) for n in params)


def test_a_multiplier_broadcasts_as_it_does_for_users():
    gradients, params = built("softmax regression")
    column = np.linspace(0.1, 5, 12, dtype=np.float32)[:, None]
    full = np.broadcast_to(column, params["kernel"].shape).copy()
    found, expected = (
        gradients.bounded_sum(
            params, EVERYBODY, Preconditioned(multiplier={"kernel": m}, bound=Clip(l2_clip_norm=1))
        )
        for m in (column, full)
    )
    assert all(np.array_equal(found[n], expected[n]) for n in params)


@pytest.mark.parametrize("name", ["mlp", "sequences", "convolutions", "lstm", "partly frozen"])
def test_groups_of_one_are_examples(name):
    gradients, params = built(name)
    bound = preconditioned(params, Clip(l2_clip_norm=0.7))
    groups = [np.array([i]) for i in EVERYBODY]
    left = gradients.grouped_sum(params, groups, bound, KEY)
    right = gradients.bounded_sum(params, EVERYBODY, bound, KEY)
    assert all(np.array_equal(left[n], right[n]) for n in params)


@pytest.mark.parametrize(
    ("name", "chunk"),
    [
        pytest.param(name, chunk, marks=pytest.mark.slow if (name, chunk) == ("resnet", 2) else ())
        for name in MODELS
        for chunk in (None, 2)
    ],
)
@pytest.mark.parametrize("backend", ["factored", "vmap"])
def test_groups_contribute_their_bounded_means(name, backend, chunk):
    gradients, params = built(name, backend=backend, chunk=chunk)
    groups = [np.array(g) for g in ([5, 1, 2], [0], [3, 4], [6, 7, 8, 9, 10])]
    totals = [gradients.bounded_sum(params, group, Unbounded(), KEY) for group in groups]
    for bound in bounds_of(params):
        expected = tree.zeros(params)
        for group, total in zip(groups, totals, strict=True):
            mean = {n: (a / len(group)).astype(np.float32) for n, a in total.items()}
            for n, a in bound.apply(mean).items():
                expected[n] += a
        found = gradients.grouped_sum(params, groups, bound, KEY)
        assert gap(found, expected) < 1e-5, bound


def test_autoencoder():
    quick, params = autoencoder()
    slow, _ = autoencoder(backend="loop")
    assert quick.backend == "factored"
    for bound in bounds_of(params):
        expected = slow.bounded_sum(params, EVERYBODY, bound)
        assert gap(quick.bounded_sum(params, EVERYBODY, bound), expected) < 1e-5


def test_dropout_needs_a_key_and_every_example_has_its_own():
    gradients, params = built("partly frozen")
    bound = Clip(l2_clip_norm=0.7)
    with pytest.raises(ValueError, match="key"):
        gradients.bounded_sum(params, EVERYBODY, bound)
    one = gradients.bounded_sum(params, EVERYBODY, bound, KEY.fold(1))
    again = gradients.bounded_sum(params, EVERYBODY, bound, KEY.fold(1))
    other = gradients.bounded_sum(params, EVERYBODY, bound, KEY.fold(2))
    assert all(np.array_equal(one[n], again[n]) for n in params)
    assert gap(one, other) > 1e-3
    assert gap(gradients.gradient(params, EVERYBODY), gradients.gradient(params, EVERYBODY)) == 0
    dropped = gradients.gradient(params, EVERYBODY, KEY)
    total = gradients.bounded_sum(params, EVERYBODY, Unbounded(), KEY)
    assert gap({n: -a / NUM for n, a in total.items()}, dropped) < 1e-6


def test_masks_keep_the_mean_and_are_an_examples_own():
    layer = nn.Dropout(0.3)
    masks, keys = ExampleMasks(layer), [KEY.fold(n) for n in range(3)]
    with masks.drawn(keys):
        together = layer(torch.ones(3, 4000))
    assert set(together.unique().tolist()) == {0.0, torch.tensor(1 / 0.7).item()}
    assert together.mean().item() == pytest.approx(1.0, abs=0.02)
    with masks.drawn(keys[1:2]):
        assert torch.equal(layer(torch.ones(1, 4000)), together[1:2])
    with masks.drawn(keys), pytest.raises(ValueError, match="5 rows for 3 examples"):
        layer(torch.ones(5, 2))
    with masks.drawn(None):
        assert torch.equal(layer(torch.ones(2, 7)), torch.ones(2, 7))


def test_chunks_are_as_large_as_memory_allows(monkeypatch):
    small, large = built("mlp")[0], autoencoder()[0]
    assert small._chosen().chunk == large._chosen().chunk == 1024
    # Four gradients of a million numbers, held twice each.
    monkeypatch.setattr("fedpriv.training.per_example.backends._BYTES", 36 << 20)
    wide = nn.Linear(1000, 1000)
    x, y = np.zeros((4, 1000), np.float32), np.zeros((4, 1000), np.float32)
    for backend, chunk in (("factored", 1024), ("vmap", 4), ("loop", 4)):
        made = ModuleGradients(wide, functional.mse_loss, x, y, backend=backend)
        assert made._chosen().chunk == chunk


def test_the_processs_own_generator_is_left_alone():
    for backend in ("factored", "vmap", "loop"):
        gradients, params = built("partly frozen", backend=backend)
        before = torch.random.get_rng_state(), np.random.get_state()[1].copy()
        gradients.bounded_sum(params, EVERYBODY, Unbounded(), KEY)
        gradients.gradient(params, EVERYBODY, KEY)
        assert torch.equal(before[0], torch.random.get_rng_state())
        assert np.array_equal(before[1], np.random.get_state()[1])


class Odd(nn.Module):
    """A dense layer and something that no rule covers."""

    def __init__(self, kind):
        super().__init__()
        self.layer = nn.Linear(12, CLASSES)
        self.kind = kind
        if kind == "lstm":
            self.more = nn.LSTM(3, 4, batch_first=True)
        if kind == "own parameter":
            self.more = nn.Parameter(torch.ones(CLASSES))
        if kind == "tied":
            self.more = nn.Linear(12, CLASSES)
            self.more.weight = self.layer.weight
        if kind == "round the corner":
            self.more = nn.Conv2d(1, CLASSES, 3, padding=1, padding_mode="circular")
        if kind == "counts":
            self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        if self.kind == "past its layer":
            return self.layer(x) + functional.linear(x.square(), self.layer.weight)
        if self.kind == "functional dropout":
            return functional.dropout(self.layer(x), 0.5, self.training)
        if self.kind == "lstm":
            return self.more(self.layer(x).reshape(-1, 4, 1).expand(-1, 4, 3))[0].mean(1)
        if self.kind == "own parameter":
            return self.layer(x) * self.more
        if self.kind == "tied":
            return self.layer(x) + self.more(x.square())
        if self.kind == "round the corner":
            return self.more(x.reshape(-1, 1, 3, 4)).mean((2, 3)) + self.layer(x)
        if self.kind == "asks for float32":
            return self.layer(x.float())
        if self.kind == "counts":
            self.seen += len(x)
            return self.layer(x) * self.seen
        if self.kind == "looks at values":
            return self.layer(x) * (2.0 if x.sum().item() > 0 else 1.0)
        return self.layer(x - x.mean(0))  # mixes examples


@pytest.mark.parametrize(
    ("kind", "backend"),
    [
        ("past its layer", "vmap"),
        ("functional dropout", "loop"),
        ("lstm", "loop"),
        ("own parameter", "vmap"),
        ("tied", "vmap"),
        ("counts", "loop"),
        ("looks at values", "loop"),
        ("round the corner", "vmap"),
        ("asks for float32", "factored"),
        ("mixes examples", "vmap"),
    ],
)
def test_what_no_rule_covers_goes_to_a_safe_backend(kind, backend):
    torch.manual_seed(0)
    module, rng = Odd(kind), np.random.default_rng(0)
    x, y = floats(12)(rng), rng.integers(0, CLASSES, NUM)
    gradients = ModuleGradients(module, cross_entropy, x, y)
    params, bound = module_params(module), Clip(l2_clip_norm=0.7)
    assert gradients.backend == backend
    if backend == "factored":
        return
    with pytest.raises(ValueError, match="'factored' does not work"):
        ModuleGradients(module, cross_entropy, x, y, backend="factored").bounded_sum(
            params, EVERYBODY, bound, KEY
        )
    total = gradients.bounded_sum(params, EVERYBODY, bound, KEY)
    singles = [gradients.bounded_sum(params, np.array([i]), bound, KEY) for i in EVERYBODY]
    assert gap({n: sum(one[n] for one in singles) for n in params}, total) < 1e-6
    if kind == "functional dropout":
        with pytest.raises(ValueError, match="key"):
            gradients.bounded_sum(params, EVERYBODY, bound)


def test_choosing_a_way_draws_nothing_from_the_process():
    x, y = floats(12)(np.random.default_rng(0)), np.zeros(NUM, np.int64)
    gradients = ModuleGradients(nn.Sequential(nn.Linear(12, 12), nn.RReLU()), cross_entropy, x, y)
    before = torch.random.get_rng_state()
    assert gradients.backend == "loop"
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_loss_that_mixes_examples_is_taken_apart():
    def weighted(outputs, targets):  # a mean by weight: a batch's is not the mean of its examples'
        return functional.cross_entropy(outputs, targets, weight=torch.tensor([1.0, 5.0, 0.1, 2.0]))

    rng = np.random.default_rng(0)
    x, y = floats(12)(rng), rng.integers(0, CLASSES, NUM)
    module = nn.Linear(12, CLASSES)
    params = module_params(module)
    sums = [
        ModuleGradients(module, weighted, x, y, backend=backend).bounded_sum(
            params, EVERYBODY, Clip(l2_clip_norm=0.7)
        )
        for backend in ("factored", "loop")
    ]
    assert gap(*sums) < 1e-5


def test_memory_maps_are_read_by_index(tmp_path):
    rng = np.random.default_rng(0)
    x, y = floats(12)(rng), rng.integers(0, CLASSES, NUM)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    mapped = [np.load(tmp_path / f"{n}.npy", mmap_mode="r") for n in "xy"]
    module = nn.Linear(12, CLASSES)
    params, index = module_params(module), np.array([9, 0, 4])
    left = ModuleGradients(module, cross_entropy, *mapped).bounded_sum(params, index, Unbounded())
    right = ModuleGradients(module, cross_entropy, x, y).bounded_sum(params, index, Unbounded())
    assert all(np.array_equal(left[n], right[n]) for n in params)


def test_wrong_arguments_are_named():
    module, x, y = nn.Linear(12, CLASSES), np.zeros((3, 12), np.float32), np.zeros(3, np.int64)
    with pytest.raises(ValueError, match="3 inputs but 2 targets"):
        ModuleGradients(module, cross_entropy, x, y[:2])
    with pytest.raises(ValueError, match="chunk 0"):
        ModuleGradients(module, cross_entropy, x, y, chunk=0)
    with pytest.raises(ValueError, match="backend 'quick'"):
        ModuleGradients(module, cross_entropy, x, y, backend="quick")
    with pytest.raises(ValueError, match="BatchNorm1d"):
        ModuleGradients(nn.BatchNorm1d(12), cross_entropy, x, y)
    gradients = ModuleGradients(module, cross_entropy, x, y)
    params = module_params(module)
    with pytest.raises(ValueError, match="grid"):
        gradients.bounded_sum(params, y, Rounded(bound=Clip(l2_clip_norm=1.0)))
    with pytest.raises(ValueError, match="bias"):
        gradients.bounded_sum({"weight": params["weight"]}, y, Unbounded())
    with pytest.raises(ValueError, match="group is empty"):
        gradients.grouped_sum(params, [y[:0]], Unbounded())


def test_tiny_gradients_are_normalised_and_not_amplified_wrongly():
    gradients, params = built("linear")
    gradients._x[:] *= np.float32(1e-20)
    bound = Normalise(l2_clip_norm=0.7)
    params = {n: p * 0 for n, p in params.items()}
    frozen = ModuleGradients(
        nn.Linear(12, CLASSES, bias=False), cross_entropy, gradients._x, gradients._y
    )
    one = frozen.bounded_sum({"weight": params["weight"]}, np.array([1]), bound)
    assert 0.7 * (1 - 1e-6) <= tree.l2_norm(one) <= 0.7
