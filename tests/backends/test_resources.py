"""What is asked of machines, and what each worker gets."""

import subprocess
import sys

import pytest

from fedpriv.backends.ray.cluster import Request, Share, share_of, store_bytes
from fedpriv.training import devices
from fedpriv.training.devices import usable_cores
from tests.harness.refusals import refuses

SMALL, BIG = {"CPU": 2.0}, {"CPU": 16.0, "GPU": 2.0}
ELSEWHERE = "10.0.0.1:6379"


@pytest.mark.parametrize(
    ("asked", "machines", "share"),
    [
        ({}, [SMALL], Share(num_workers=2)),
        ({"workers": 1}, [SMALL], Share(num_workers=1)),
        ({"workers": 4}, [SMALL], Share(num_workers=4, num_cpus=0.5)),
        ({"workers": 3}, [SMALL], Share(num_workers=3, num_cpus=0.6666)),
        ({"gpus_per_worker": 1}, [BIG], Share(num_workers=2, num_gpus=1)),
        ({"gpus_per_worker": 0.5}, [BIG], Share(num_workers=4, num_gpus=0.5)),
        ({"gpus_per_worker": 0.3}, [BIG], Share(num_workers=6, num_gpus=0.3)),
        ({"gpus_per_worker": 0.5, "workers": 3}, [BIG], Share(num_workers=3, num_gpus=0.5)),
        (
            {"gpus_per_worker": 0.25},
            [{"CPU": 2.0, "GPU": 1.0}],
            Share(num_workers=4, num_cpus=0.5, num_gpus=0.25),
        ),
        ({"address": ELSEWHERE}, [SMALL, SMALL], Share(num_workers=4)),
        ({"address": ELSEWHERE, "workers": 18}, [SMALL, BIG], Share(num_workers=18)),
        (
            {"address": ELSEWHERE, "gpus_per_worker": 1},
            [SMALL, BIG],
            Share(num_workers=2, num_gpus=1),
        ),
        (
            {"gpus_per_worker": 1, "logical_gpus": 2},
            [BIG],
            Share(num_workers=2, num_gpus=1, logical=True),
        ),
    ],
)
def test_what_each_worker_gets(asked, machines, share):
    assert share_of(Request(**asked), machines) == share


@pytest.mark.parametrize(
    ("asked", "machines", "said"),
    [
        ({"gpus_per_worker": 0.5}, [SMALL], ()),
        ({"gpus_per_worker": 1, "workers": 3}, [BIG], (2,)),
        ({"gpus_per_worker": 0.6, "workers": 3}, [BIG], (2,)),
        ({"address": ELSEWHERE, "workers": 8}, [SMALL], (ELSEWHERE, 2)),
        ({"address": ELSEWHERE, "workers": 2}, [{"CPU": 1.5}] * 1, (1,)),
        ({"address": ELSEWHERE}, [{"CPU": 0.0}], (0,)),
        ({"address": ELSEWHERE, "gpus_per_worker": 1}, [SMALL], ()),
    ],
)
def test_what_cannot_be_had_is_named(asked, machines, said):
    with refuses(ValueError, *said):
        share_of(Request(**asked), machines)


def test_the_quota_of_a_container_counts(tmp_path, monkeypatch):
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(devices, "Path", lambda name: quota)
    monkeypatch.setattr(devices.os, "sched_getaffinity", lambda process: range(64))
    assert usable_cores() == 64
    for text, cores in (("max 100000", 64), ("250000 100000", 2), ("50000 100000", 1)):
        quota.write_text(text)
        assert usable_cores() == cores


def test_the_object_store_grows_with_the_model_and_the_workers():
    assert store_bytes(0, 1) >= 80 << 20  # Ray refuses less
    assert store_bytes(20 << 20, 2) < 400 << 20
    assert store_bytes(20 << 20, 8) > store_bytes(20 << 20, 2) > store_bytes(1 << 20, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "code"),
    [
        (
            "ray",
            "import fedpriv, fedpriv.cli, fedpriv.runs.prepared, fedpriv.backends.backend;"
            "from fedpriv.backends.ray.cluster import *; Cluster(Request()).close()",
        ),
        # It takes seconds in every worker, and before `fedpriv --help`.
        (
            "torch",
            "import fedpriv.backends.ray.backend, fedpriv.backends.flower.settings;"
            "import fedpriv.runs.prepared, fedpriv.tasks.tag_prediction, fedpriv.report.page;"
            "import fedpriv.cli.listing, ray; from fedpriv.backends.ray.backend import Worker;"
            "ray.get_gpu_ids = list; Worker().open(lambda device: device)",
        ),
    ],
)
def test_a_library_is_loaded_by_nobody_who_does_not_use_it(library, code):
    script = f"import sys; {code}; raise SystemExit({library!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
