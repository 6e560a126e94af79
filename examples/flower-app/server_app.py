from flwr.serverapp import ServerApp
from shared import ROSTER, model

import fedpriv as fp

app = ServerApp()


@app.main()
def main(grid, context):
    plan = fp.Rounds(users=len(ROSTER), cohort=20, rounds=3).plan(
        l2_clip_norm=0.5, target_epsilon=8.0
    )
    strategy = fp.flower.UserLevelStrategy(roster=ROSTER)
    start, out = fp.module_params(model()), context.run_config["out"]
    trained = strategy.start(grid, fp.averaging(plan, roster=ROSTER, params=start, out=out))
    print(trained)  # 3 rounds, simulated ε = ... at δ = ... (add-remove, per user, by PLD; ...)
