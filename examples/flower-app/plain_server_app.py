"""A server in plain Flower: the average of what nodes send, weighted by their examples."""

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from task import model

app = ServerApp()


@app.main()
def main(grid, context):
    strategy = FedAvg(fraction_evaluate=0.0)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model().state_dict()),
        num_rounds=3,
        train_config=ConfigRecord({"learning-rate": 0.2}),
    )
    print(result)
