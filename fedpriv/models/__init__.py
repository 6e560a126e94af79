"""Plain `nn.Module`s."""

from fedpriv.models.linear import SoftmaxRegression

__all__ = ["SoftmaxRegression"]
