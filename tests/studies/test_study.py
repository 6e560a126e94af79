"""Studies as they are written, the trials they come to, and the keys of these."""

from dataclasses import replace

import numpy as np
import pytest

from fedpriv.experiments.build import make_task
from fedpriv.experiments.load import load_experiment
from fedpriv.rng import Key
from fedpriv.studies.study import Method, Resolver, Study, load_study
from tests.harness.refusals import refuses
from tests.studies.small import small, study, task

TOML = """
name = "two methods"
epsilons = [2, "none"]
seeds = 2

[methods]
"as it is" = "dp-fedavg-tags"

[methods.agd-tags]
epsilons = [4]
largest-step = 1.0

[methods.longer]
experiment = "dp-fedavg-tags"
rounds = 7
noise.kind = "tree"
sampling = "separated"
min-separation = 5

[data.real]
corpus = "CORPUS"
fold = 1

[options]
users = 12
"""


def keys(made):
    return [trial.key for trial in Resolver(made).trials()]


class TestTrials:
    @pytest.mark.slow
    def test_a_file_says_methods_levels_seeds_and_data(self, tiny_corpus, tmp_path):
        file = tmp_path / "study.toml"
        file.write_text(TOML.replace("CORPUS", str(tiny_corpus.directory)), "utf-8")
        trials = Resolver(load_study(file)).trials()
        rows = {(t.method, t.epsilon, t.data, t.seed) for t in trials}
        levels = {"as it is": (2.0, None), "agd-tags": (4.0,), "longer": (2.0, None)}
        cells = [(method, level) for method in levels for level in levels[method]]
        assert rows == {(*cell, "real", seed) for cell in cells for seed in (0, 1)}
        assert len({trial.key for trial in trials}) == len(trials) == 10
        longer = next(t for t in trials if t.method == "longer" and t.epsilon == 2.0)
        options = longer.experiment.options()
        assert (options["rounds"], options["noise"], options["task.fold"]) == (7, "tree", 1)
        assert options["target_epsilon"] == 2.0
        assert longer.corpus == tiny_corpus.directory.resolve()

    def test_a_method_without_noise_is_run_once_and_one_that_needs_epsilon_not_without(self):
        methods = {"plain": small().with_options({"noise": "none"}), "private": small()}
        made = Study(name="s", methods=methods, epsilons=[1.0, 2.0])
        assert [cell[:2] for cell in Resolver(made).cells()] == [
            ("plain", None), ("private", 1.0), ("private", 2.0)
        ]  # fmt: skip
        agd = Study(name="s", methods=["agd-tags"], epsilons=[None, 2.0])
        assert [cell[1] for cell in Resolver(agd).cells()] == [2.0]

    @pytest.mark.parametrize("levels", [[8.0], ["none"]])
    @pytest.mark.parametrize(
        ("name", "value"),
        [("noise-multiplier", 0.3), ("noise.multiplier", 0.3), ("target-epsilon", 2.0)],
    )
    @pytest.mark.parametrize("where", ["options", "method", "data"])
    def test_a_noise_that_its_file_gives_is_not_overridden(self, where, name, value, levels):
        given = {"options": {}, "method": {}, "data": {}} | {where: {name: value}}
        methods, data = {"x": {"experiment": small(), **given["method"]}}, {"d": given["data"]}
        made = Study(
            name="s", methods=methods, epsilons=levels, options=given["options"], data=data
        )
        with refuses(ValueError, "'x'", "'d'", f"{name} {value}"):
            list(Resolver(made).cells())

    def test_a_searched_noise_is_not_overridden(self):
        made = Study(name="s", methods={"x": small()})
        with refuses(ValueError, "'x'", "noise.multiplier 0.3"):
            Resolver(made).trial("x", 8.0, "", 0, {"noise.multiplier": 0.3}, key="0" * 16)

    def test_without_noise_stays_without(self):
        made = Study(name="s", methods={"x": small()}, options={"noise": "none"}, epsilons=[8.0])
        assert [cell[1] for cell in Resolver(made).cells()] == [None]

    def test_paths_are_of_the_studys_folder(self, tmp_path, monkeypatch):
        (tmp_path / "own.py").write_text("from tests.studies.small import small\n", "utf-8")
        (tmp_path / "study.toml").write_text('name = "s"\nmethods = ["own.py:small"]\n', "utf-8")
        monkeypatch.chdir("/")
        made = load_study(tmp_path / "study.toml")
        assert Resolver(made).trials()[0].experiment.name == "small"


class TestKeys:
    @pytest.mark.slow
    def test_equal_resolved_options_have_equal_keys(self):
        plain = Study(name="a", methods={"x": small()}, epsilons=[2.0], seeds=[0, 3])
        methods = {"x": Method(experiment=small(), options={"rounds": 11})}  # code is told by name
        options = {"noise.kind": "gaussian", "cohort": 4}
        spelled = Study(name="b", methods=methods, epsilons=[2], seeds=[0, 3], options=options)
        assert keys(plain) == keys(spelled)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("option", "value"),
        {
            **{"rounds": 4, "l2_clip_norm": 0.5, "cohort": 3.0, "local.learning_rate": 0.2},
            **{"server.learning_rate": 0.5, "delta": 0.02, "eval_every": 1},
            "exact_sum": False,
        }.items(),
    )
    def test_any_option_that_matters_makes_another_key(self, option, value):
        plain = Study(name="a", methods={"x": small()}, epsilons=[2.0])
        assert keys(plain) != keys(replace(plain, options={option: value}))

    @pytest.mark.slow
    def test_so_do_level_seed_data_label_of_code_and_version(self, monkeypatch):
        plain = Study(name="a", methods={"x": small()}, epsilons=[2.0], seeds=1)
        found = {*keys(plain)}
        for changed in (
            replace(plain, epsilons=[3.0]),
            replace(plain, epsilons=[None]),
            replace(plain, seeds=[1]),
            replace(plain, methods={"x": replace(small(), name="other")}),
            replace(plain, methods={"x": replace(small(), task=other_data)}),
            replace(plain, methods={"y": small()}),
        ):
            [key] = keys(changed)
            assert key not in found
            found.add(key)
        monkeypatch.setattr("fedpriv.studies.study.__version__", "9.9")
        assert keys(plain)[0] not in found


def other_data(experiment):
    made = task(experiment)
    made.data.users["user-0"].x[0, 0] += 1.0
    return made


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "named"),
        [
            ({"name": " "}, "' '"),
            ({"methods": {}}, "{}"),
            ({"methods": {"x": 3}}, "'x' is 3"),
            ({"epsilons": []}, "epsilons []"),
            ({"epsilons": [2.0, 2]}, "epsilons [2.0, 2]"),
            ({"epsilons": [-1]}, "epsilons -1.0"),
            ({"seeds": []}, "()"),
            ({"seeds": [1, 1]}, "(1, 1)"),
            ({"options": {"seed": 3}}, "options"),
        ],
    )
    def test_what_does_not_fit_is_said(self, change, named):
        with refuses(ValueError, named):
            Study(**({"name": "s", "methods": {"x": small()}} | change))

    def test_an_option_that_a_method_has_not_names_the_method(self):
        made = Study(name="s", methods={"mine": small()}, options={"pairs": 3})
        with refuses(ValueError, "'mine'", "pairs"):
            Resolver(made).trials()

    def test_a_file_with_an_unknown_key_says_where_options_go(self, tmp_path):
        file = tmp_path / "s.toml"
        file.write_text('name = "s"\nmethods = ["agd-tags"]\nrounds = 3\n', "utf-8")
        with refuses(ValueError, "'rounds'"):
            load_study(file)
        for name in (tmp_path / "none.toml", "some-name"):
            with refuses(ValueError, name):
                load_study(name)


def test_a_python_file_is_loaded_by_name():
    assert load_study("tests.studies.small:study").name == study().name


class TestByUser:
    def test_a_modules_sums_add_up_to_what_is_measured(self):
        made = task(small())
        weight = np.random.default_rng(3).normal(size=(2, 3)).astype(np.float32)
        params = {"weight": weight, "bias": np.zeros(2, np.float32)}
        count, value = made.held_out_by_user(params)
        whole = made.evaluate(params, public=False)
        assert count.tolist() == [0, 1, 2, 3, 4, 5, 0, 0]  # in the roster's order
        assert value.sum() == whole.totals["accuracy"].sum and count.sum() == whole.num_examples
        for place in range(len(made.roster)):
            if count[place]:
                at = int(count[:place].sum())
                alone = made._sets["test"].take(np.arange(at, at + count[place]))
                found = made.metrics(params, alone)
                assert value[place] == found.totals["accuracy"].sum

    def test_a_tag_models_sums_add_up_to_what_is_measured(self, tiny_corpus):
        for options in ({}, {"task.inputs": "tf-idf", "task.pairs": 16}):
            experiment = load_experiment("dp-fedavg-tags").with_options(options)
            made = make_task(experiment, tiny_corpus)
            rng = np.random.default_rng(0)
            shapes = {n: a.shape for n, a in made.init_params(Key.simulation(0)).items()}
            params = {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}
            count, value = made.held_out_by_user(params)
            whole = made.evaluate(params, public=False)
            assert count.sum() == whole.num_examples > 0
            assert value.sum() == whole.totals["accuracy"].sum
            view, on = made.view, made.view.split.measured_on
            assert count.tolist() == [view.num_examples(user, on) for user in made.roster]
