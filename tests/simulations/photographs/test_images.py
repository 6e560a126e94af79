"""DP-SGD on small photographs: it runs, and starts from either half of a checkpoint."""

import numpy as np
import pytest

from fedpriv.checkpoints.tensor_files import read_tensors
from fedpriv.experiments.ready_made.images import dp_sgd_cifar
from fedpriv.runs.prepared import start_run
from tests.harness.refusals import refuses
from tests.simulations.photographs.records import write_records


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_records(tmp_path_factory.mktemp("cifar"), 24, 8)


@pytest.mark.slow
def test_it_runs_and_a_second_run_starts_from_its_average(folder, tmp_path):
    small = {"folder": str(folder), "batch-size": 6.0, "epochs": 0.5, "multiplicity": 2,
             "eval-every": 1}  # fmt: skip
    first = start_run(dp_sgd_cifar().with_options(small), None, None, tmp_path / "public")
    summary = first.run()
    assert summary["rounds"] == 2 and summary["unit"] == "example"
    file = max((tmp_path / "public" / "checkpoints").glob("*.safetensors"))
    from_average = {**small, "start": "file", "start-file": str(file), "start-which": "ema"}
    second = start_run(dp_sgd_cifar().with_options(from_average), None, None, tmp_path / "r")
    kept, _ = read_tensors(file)
    for name, array in second.state.params.items():
        np.testing.assert_array_equal(array, kept[f"ema/{name}"])
    second.folder.close()


def test_hundred_classes_need_their_own_files(folder):
    with refuses(ValueError, "cifar-100-binary.tar.gz"):
        dp_sgd_cifar().with_options({"photographs": "cifar100", "folder": str(folder)}).task(None)
