"""A privatizer of any cost, with or without a memory; it adds nothing."""

from fedpriv.mechanisms.privatizer import Cost, Privatizer


class Costing(Privatizer):
    """Of a kind and value of cost; what it draws is the sensitivity."""

    name = "written down"
    cost = None  # of each its own

    def __init__(self, kind, value=0.0, *, memory=None, **cost):
        self.cost, self.memory = Cost(kind=kind, value=value, **cost), memory or {}

    def init(self, template, key):
        return self.memory

    def draw(self, memory, *, template, sensitivity, key):
        return sensitivity, memory

    def release(self, total, drawn, share):
        return total.total["w"].sum() * share
