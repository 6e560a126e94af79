"""Linear models seen one example at a time, in closed form: `ExampleGradients` of six of them.

===========================  ==================================  ===============================
model                        params                              loss
===========================  ==================================  ===============================
`LogisticGradients`          weight `(d,)`, bias `(1,)`          log-loss of one logit
`HingeGradients`             weight `(d,)`, bias `(1,)`          hinge of one logit (a linear SVM)
`HuberGradients`             weight `(d,)`, bias `(1,)`          the hinge, with its corner rounded
`OneVsAllGradients`          kernel `(d, k)`, bias `(k,)`        log-losses of k logits
`SoftmaxGradients`           kernel `(d, k)`, bias `(k,)`        cross-entropy of k logits
`LinearRegressionGradients`  weight `(d,)`                       half the squared error
===========================  ==================================  ===============================

All but the last take sparse inputs and never make an example's gradient dense; logits, residuals,
norms and sums are float64.

>>> import numpy as np
>>> from fedpriv.mechanisms import Clip
>>> toy = LinearRegressionGradients(np.array([[3.0, 4.0]], np.float32), np.array([-1.0]))
>>> total = toy.bounded_sum(
...     {"weight": np.zeros(2, np.float32)}, np.array([0]), Clip(l2_clip_norm=1.0)
... )
>>> [round(float(value), 5) for value in total["weight"]]
[-0.6, -0.8]
"""

from fedpriv.training.per_example.linear.dense import LinearRegressionGradients
from fedpriv.training.per_example.linear.metrics import linear_class_scores, linear_metrics
from fedpriv.training.per_example.linear.sparse import (
    HingeGradients,
    HuberGradients,
    LogisticGradients,
    OneVsAllGradients,
    SoftmaxGradients,
)

__all__ = [
    "HingeGradients",
    "HuberGradients",
    "LinearRegressionGradients",
    "LogisticGradients",
    "OneVsAllGradients",
    "SoftmaxGradients",
    "linear_class_scores",
    "linear_metrics",
]
