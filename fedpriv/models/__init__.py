"""Plain `nn.Module`s."""

from fedpriv.models.images import Autoencoder, DigitClassifier, ResNet20, SoftmaxRegression
from fedpriv.models.text import TextLSTM

__all__ = ["Autoencoder", "DigitClassifier", "ResNet20", "SoftmaxRegression", "TextLSTM"]
