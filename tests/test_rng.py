"""Keys: reproducible where that is asked for, unrelated, one way, and never shown.

Statistical tests run on fixed keys, so they never flake; each says its sample size and the
false-alarm rate at which it would fail for a fresh key.
"""

import itertools
import logging
import pickle
import subprocess
import sys
import traceback

import numpy as np
import pytest
import torch
from scipy import stats

from fedpriv.kernels.normals import box_muller, philox
from fedpriv.rng import Key
from tests.harness.refusals import refuses

ALPHA = 1e-6


def fixed(mode, number=0):
    """A key of a mode that is the same in every test run."""
    return Key.from_bytes(Key.simulation(number).to_bytes(), mode)


def both_modes():
    return pytest.mark.parametrize("mode", ["simulation", "secure"])


class TestFolding:
    def test_same_parts_same_key_in_another_process(self):
        made = Key.simulation(7).fold("noise").fold(3).to_bytes().hex()
        code = (
            "from fedpriv.rng import Key; import sys;"
            "sys.stdout.write(Key.simulation(7).fold('noise').fold(3).to_bytes().hex())"
        )
        for hash_seed in ("0", "1"):
            done = subprocess.run(
                [sys.executable, "-c", code],
                env={"PYTHONHASHSEED": hash_seed},
                capture_output=True,
                text=True,
                check=True,
                cwd=sys.path[0] or None,
            )
            assert done.stdout == made

    def test_all_children_differ(self):
        root = Key.simulation(0)
        words = ["cohort", "users", "noise", "init", "", "1", "01", "a", "b", "ab", "n1", "w1"]
        children = [root, *(root.fold(part) for part in [*words, *range(-3, 40)])]
        children += [root.fold(a).fold(b) for a, b in itertools.permutations(words[:8], 2)]
        children += [root.fold(a).fold(b) for a in range(1, 12) for b in range(1, 12)]
        children += [Key.simulation(seed) for seed in (-1, 1, 2, 10)]
        values = {key.to_bytes() for key in children}
        assert len(values) == len(children)

    def test_a_word_is_not_a_number(self):
        root = Key.simulation(0)
        assert root.fold("1") != root.fold(1)
        assert root.fold(np.int32(5)) == root.fold(5)

    def test_order_matters_and_parts_do_not_run_together(self):
        root = Key.simulation(0)
        assert root.fold("a").fold("b") != root.fold("b").fold("a") != root.fold("ab")
        assert root.fold(1).fold(11) != root.fold(11).fold(1) != root.fold(111)

    def test_folding_is_one_way(self):
        # A child says nothing of its parent: flipping any bit of the parent changes about half of
        # the child's 256 bits, and no byte of the parent or of a sibling stays visible.
        parent = Key.simulation(3)
        child = np.unpackbits(np.frombuffer(parent.fold("x").to_bytes(), np.uint8))
        flipped = []
        for bit in range(256):
            value = bytearray(parent.to_bytes())
            value[bit // 8] ^= 1 << bit % 8
            other = Key.from_bytes(bytes(value)).fold("x").to_bytes()
            flipped.append((np.unpackbits(np.frombuffer(other, np.uint8)) != child).sum())
        # Each count is Binomial(256, 1/2): outside 80..176 once in 1e9; the mean within 1.5.
        assert min(flipped) > 80 and max(flipped) < 176
        assert abs(np.mean(flipped) - 128) < 3
        assert parent.to_bytes() not in (parent.fold("x").to_bytes(), parent.fold("").to_bytes())

    @pytest.mark.parametrize("part", [1.0, None, True, b"word", ("a",), np.float32(1), np.bool_(1)])
    def test_what_is_neither_word_nor_number_is_refused(self, part):
        with pytest.raises(ValueError):
            Key.simulation(0).fold(part)

    @pytest.mark.parametrize("seed", [None, "0", 0.0, True, np.float64(1)])
    def test_a_seed_is_an_integer(self, seed):
        with pytest.raises(ValueError):
            Key.simulation(seed)

    @pytest.mark.parametrize("value", [b"", bytes(31), bytes(33), "x" * 32, bytearray(32), None])
    def test_a_key_is_32_bytes(self, value):
        with refuses(ValueError, 32):
            Key.from_bytes(value)

    @both_modes()
    def test_bytes_round_trip_and_mode_is_inherited(self, mode):
        key = fixed(mode)
        assert Key.from_bytes(key.to_bytes(), mode) == key
        assert key.fold("a").fold(1).mode == key.mode == mode


class TestSecrecy:
    @both_modes()
    def test_no_text_form_shows_the_key(self, mode, caplog):
        key = fixed(mode)
        secret = key.to_bytes()
        with caplog.at_level(logging.DEBUG):
            logging.getLogger("any").warning("using %s and %r", key, key)
        try:
            raise RuntimeError(f"failed with {key}") from ValueError(key)
        except RuntimeError:
            trace = traceback.format_exc()
        shown = [repr(key), str(key), f"{key}", caplog.text, trace, repr({"k": [key]})]
        for text in shown:
            assert "hidden" in text and mode in text
            for form in (secret.hex(), repr(secret)[2:-1], str(list(secret))[1:-1], str(secret)):
                assert form not in text

    def test_secure_keys_share_nothing(self):
        first, second = Key.secure(), Key.secure()
        assert first != second and first.mode == "secure"
        # Their children under the same name, and 100 000 float64 noise values, are unrelated.
        assert first.fold("noise").fold(1) != second.fold("noise").fold(1)
        a, b = (key.fold("noise").normal((100_000,), np.float64) for key in (first, second))
        assert not np.isin(a, b).any()
        # |r| > 0.016 happens once in 2.3 million pairs (5.06 standard errors).
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.016

    def test_secure_keys_are_of_more_than_four_bytes_of_entropy(self):
        """300,000 keys, all different: of 32 random bits, however stretched, 10 pairs would be one.

        Such a source passes once in 35,000 runs, and one of 256 bits fails once in 10^66. Bytes
        that are constant, or copies of others, are looked for in 2,000 of them: 32 positions and
        496 pairs, each of which agrees in 60 keys or more once in 10^30 and not in 2,000.
        """
        keys = [Key.secure().to_bytes() for _ in range(300_000)]
        different = len(set(keys))
        assert different == 300_000
        places = np.frombuffer(b"".join(keys[:2000]), np.uint8).reshape(2000, 32)
        assert max(np.bincount(column).max() for column in places.T) < 60
        for a, b in itertools.combinations(places.T, 2):
            assert np.count_nonzero(a == b) < 60

    def test_a_secure_key_takes_no_seed(self):
        with pytest.raises(TypeError):
            Key.secure(0)  # type: ignore[call-arg]

    @both_modes()
    def test_secure_and_simulation_streams_differ_for_equal_bytes(self, mode):
        other = "secure" if mode == "simulation" else "simulation"
        a, b = fixed(mode).normal((1000,)), fixed(other).normal((1000,))
        assert not np.array_equal(a, b)

    def test_frozen(self):
        with pytest.raises(AttributeError):
            Key.simulation(0).mode = "secure"  # type: ignore[misc]
        assert pickle.loads(pickle.dumps(Key.simulation(0))) == Key.simulation(0)


class TestStreams:
    @both_modes()
    def test_pure_and_untouched_by_global_generators(self, mode):
        key = fixed(mode)
        np.random.seed(0)
        torch.manual_seed(0)
        numpy_state, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()
        first, draws = key.normal((1000,)), key.generator().random(1000)
        assert (np.random.get_state()[1] == numpy_state).all()
        assert torch.equal(torch.get_rng_state(), torch_state)
        np.random.seed(123)
        torch.manual_seed(123)
        np.testing.assert_array_equal(first, key.normal((1000,)))
        np.testing.assert_array_equal(draws, key.generator().random(1000))

    def test_seeding_global_generators_does_not_repeat_secure_noise(self):
        def noise():
            np.random.seed(0)
            torch.manual_seed(0)
            return Key.secure().fold("noise").normal((100,), np.float64)

        assert not np.isin(noise(), noise()).any()

    @both_modes()
    @pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 0), (5, 3), (2, 3, 5)])
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_shapes_and_dtypes(self, mode, shape, dtype):
        drawn = fixed(mode).normal(shape, dtype)
        assert isinstance(drawn, np.ndarray) and drawn.shape == shape and drawn.dtype == dtype
        assert np.isfinite(drawn).all() and len(np.unique(drawn)) == drawn.size

    def test_the_secure_stream_does_not_repeat_across_its_blocks(self):
        size = 2 * (1 << 19) + 12_345  # more than two blocks of the key stream, and odd
        drawn = fixed("secure").normal((size,), np.float64)
        assert np.isfinite(drawn).all()
        assert len(np.unique(drawn)) == size
        parts = np.array_split(drawn, 8)
        for a, b in itertools.combinations([p[: size // 8] for p in parts], 2):
            # 28 pairs, |r| > 6 / sqrt(n) once in 5e8 each.
            assert abs(np.corrcoef(a, b)[0, 1]) < 6 / np.sqrt(size // 8)

    @both_modes()
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_a_standard_deviation_multiplies(self, mode, dtype):
        key = fixed(mode, 8)
        unit, scaled = key.normal((100,), dtype), key.normal((100,), dtype, stddev=4.0)
        np.testing.assert_array_equal(scaled, 4 * unit)

    def test_secure_blocks_are_box_mullers_of_53_bits_of_chacha20(self):
        """Even and odd blocks, to the bit: (b + 1/2) 2^-53 of the upper 53 bits, never 0 or 1."""
        key = fixed("secure", 5)
        for size in (2, 3, 1000, 1001):
            half = (size + 1) // 2
            unit = ((key.words(2 * half, 0) >> np.uint64(11)) + 0.5) * 2.0**-53
            radius, angle = np.sqrt(-2 * np.log(unit[:half])) * 0.7, 2 * np.pi * unit[half:]
            expected = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]
            found = key.normal((size,), np.float64, stddev=0.7)
            np.testing.assert_array_equal(found, expected)

    def test_simulated_blocks_are_of_the_first_sixteen_bytes_and_their_own_number(self):
        """Two words are Philox's key, two the upper half of its counter."""
        size = (1 << 16) + 10
        key = fixed("simulation", 6)
        found, words = key.normal((size,)), np.frombuffer(key.to_bytes(), np.uint32)
        for number, block in enumerate((found[: 1 << 16], found[1 << 16 :])):
            bits = np.empty(-(-block.size // 4) * 4, np.uint32)
            philox(words[:2], np.array([0, number, words[2], words[3]], np.uint32), bits)
            expected = np.empty(bits.size, np.float32)
            box_muller(bits, np.float32(1), expected)
            np.testing.assert_array_equal(block, expected[: block.size])

    @both_modes()
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_normal_shape_and_variance(self, mode, dtype):
        """n = 200 000, KS and two-sided chi-squared at α = 1e-6 each; scale 0.98 and 1.02 fail."""
        n = 200_000
        drawn = fixed(mode, 1).normal((n,), dtype).astype(np.float64)
        assert stats.kstest(drawn, "norm").pvalue > ALPHA
        low, high = stats.chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], n)
        energy = float(drawn @ drawn)
        assert low < energy < high
        assert energy * 0.98**2 < low and energy * 1.02**2 > high
        assert abs(drawn.mean()) < stats.norm.isf(ALPHA / 2) / np.sqrt(n)
        # Fourth moment 3 with standard error sqrt(96 / n); tails are there, none too far out.
        assert abs((drawn**4).mean() - 3) < stats.norm.isf(ALPHA / 2) * np.sqrt(96 / n)
        assert 3.8 < np.abs(drawn).max() < 7.5

    @both_modes()
    def test_neighbours_within_a_draw_are_unrelated(self, mode):
        """n = 200 000, lags 1, 2, n/2 (Box-Muller's two halves) and their squares, 1e-6 each."""
        drawn = fixed(mode, 2).normal((200_000,), np.float64)
        limit = stats.norm.isf(ALPHA / 2)
        for values in (drawn, drawn**2 - 1):
            for lag in (1, 2, 100_000):
                a, b = values[:-lag], values[lag:]
                assert abs(np.corrcoef(a, b)[0, 1]) < limit / np.sqrt(len(a))

    @both_modes()
    def test_children_are_unrelated(self, mode):
        """48 streams of 20 000, all 1128 pairs: |r| above 7/sqrt(n) once in 3e8 a set."""
        root = fixed(mode, 3)
        keys = [root.fold(w).fold(r) for w in ("noise", "cohort", "users") for r in range(1, 17)]
        drawn = np.stack([key.normal((20_000,), np.float64) for key in keys])
        correlation = np.corrcoef(drawn)
        np.fill_diagonal(correlation, 0)
        assert np.abs(correlation).max() < 7 / np.sqrt(20_000)

    def test_uniform_bits_of_the_generator(self):
        """n = 100 000 in 100 cells, chi-squared at α = 1e-6."""
        cells = np.bincount(fixed("simulation", 4).generator().integers(0, 100, 100_000))
        assert stats.chisquare(cells).pvalue > ALPHA
