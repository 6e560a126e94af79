"""The operator's command ends as its run did."""

from types import SimpleNamespace

import pytest
from flwr.proto.control_pb2 import ListRunsResponse
from flwr.proto.run_pb2 import Run, RunStatus

from fedpriv.deploy.flower_private import follow
from tests.deployment.layout import read


def followed(status: str, sub_status: str) -> list[int]:
    """Follow a run that is in a state when its log ends; return the runs whose log was shown."""
    state = RunStatus(status=status, sub_status=sub_status, details="no node hosts anybody")
    client = SimpleNamespace(
        ListRuns=lambda request: ListRunsResponse(
            run_dict={request.run_id: Run(run_id=request.run_id, status=state)}
        )
    )
    shown: list[int] = []
    follow(lambda run_id, given: shown.append(run_id), 7, client)
    return shown


def test_a_run_that_succeeded_ends_well():
    assert followed("finished", "completed") == [7]


@pytest.mark.parametrize(
    ("status", "sub_status"),
    [("finished", "failed"), ("finished", "stopped"), ("running", ""), ("starting", "")],
)
def test_every_other_one_fails_with_how_it_ended(capsys, status, sub_status):
    with pytest.raises(SystemExit) as failed:
        followed(status, sub_status)
    said = capsys.readouterr().err
    assert failed.value.code == 1 and sub_status in said
    assert status in said and "no node hosts anybody" in said


def test_the_operators_container_runs_it():
    assert read()["services"]["operator"]["entrypoint"] == ["fedpriv", "deploy", "operator"]
