"""A node: it trains one user at a time, and sends one sum of their bounded updates."""

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from task import examples_of, fit, model, users_of

import fedpriv as fp

app = fp.flower.UserLevelClientApp(users=users_of)


@app.train()
def train(message, context):
    net = model()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = examples_of([context.node_config["user-id"]])
    loss = fit(net, x, y, message.content["config"]["learning-rate"])
    metrics = MetricRecord({"loss": loss, "num-examples": len(x)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
