"""What users keep to themselves is no figure of a secure run."""

import fedpriv as fp
from fedpriv.tasks.module_task import PersonalLayers
from tests.tasks.people import experiment, person, refused, task


def personal(**given):
    return experiment(task(personal=PersonalLayers(names=("bias",), **given)), rounds=1)


def test_personal_figures_are_refused(tmp_path):
    own = personal(test={"u01": person(1)})
    refused(tmp_path / "run", own, ValueError, "test", secure=True)
    fp.run(own)


def test_personal_layers_alone_are_not(tmp_path):
    run = fp.run(personal(), out=tmp_path / "run", secure=True)
    assert "bias" not in run.params
