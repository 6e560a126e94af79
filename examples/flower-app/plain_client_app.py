"""A node in plain Flower: it trains on all of its users, and sends params and metrics."""

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from task import examples_of, fit, model, users_of

app = ClientApp()


@app.train()
def train(message, context):
    net = model()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = examples_of(users_of(context))
    loss = fit(net, x, y, message.content["config"]["learning-rate"])
    metrics = MetricRecord({"loss": loss, "num-examples": len(x)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
