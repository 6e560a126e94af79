"""A server with user-level privacy: each round charged in a ledger, summed and noised once."""

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp
from task import ROSTER, model

import fedpriv as fp

app = ServerApp()


@app.main()
def main(grid, context):
    rounds = fp.Rounds(users=len(ROSTER), cohort=20, rounds=3)
    plan = rounds.plan(l2_clip_norm=0.5, target_epsilon=8.0)
    out = context.run_config["out"]
    strategy = fp.flower.UserLevelStrategy(plan, roster=ROSTER, out=out)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model().state_dict()),
        num_rounds=3,
        train_config=ConfigRecord({"learning-rate": 0.2}),
    )
    print(result)
