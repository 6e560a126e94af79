"""Plain `nn.Module`s."""

from fedpriv.models.autoencoder import Autoencoder
from fedpriv.models.images import DigitClassifier, ResNet20
from fedpriv.models.linear import SoftmaxRegression
from fedpriv.models.recurrent import TextLSTM

__all__ = ["Autoencoder", "DigitClassifier", "ResNet20", "SoftmaxRegression", "TextLSTM"]
