"""Plain `nn.Module`s."""

from fedpriv.models.images import DigitClassifier, SoftmaxRegression

__all__ = ["DigitClassifier", "SoftmaxRegression"]
