"""What scikit-learn's SGDClassifier documents, in NumPy: where there is no scikit-learn."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np


class SGDClassifier:
    loss: Any
    penalty: Any
    alpha: Any
    shuffle: Any
    random_state: Any
    learning_rate: Any
    eta0: Any
    power_t: Any
    average: Any

    def __init__(
        self,
        loss="hinge",
        *,
        penalty="l2",
        alpha=0.0001,
        l1_ratio=0.15,
        fit_intercept=True,
        max_iter=1000,
        tol=1e-3,
        shuffle=True,
        verbose=0,
        epsilon=0.1,
        n_jobs=None,
        random_state=None,
        learning_rate="optimal",
        eta0=0.01,
        power_t=0.5,
        early_stopping=False,
        validation_fraction=0.1,
        n_iter_no_change=5,
        class_weight=None,
        warm_start=False,
        average=False,
    ):
        self.__dict__.update({name: value for name, value in locals().items() if name != "self"})

    def get_params(self, deep=True):
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def partial_fit(self, X, y, classes=None):
        if not hasattr(self, "classes_"):
            self.classes_ = np.unique(np.asarray(classes))
            models = 1 if len(self.classes_) == 2 else len(self.classes_)
            self._last = np.zeros((models, X.shape[1]))
            self._mean, self.t_ = self._last.copy(), 1.0
        order = np.arange(len(y))
        if self.shuffle:
            order = np.random.default_rng(self.random_state).permutation(order)
        ends = self.classes_[1:] if len(self.classes_) == 2 else self.classes_
        for place, positive in enumerate(ends):
            w, mean, t = self._last[place], self._mean[place], self.t_
            for i in order:
                eta = self.eta0 / (t**self.power_t if self.learning_rate == "invscaling" else 1.0)
                sign = 1.0 if y[i] == positive else -1.0
                step = eta * _steepness(self.loss, sign * (w @ X[i])) * sign * X[i]
                w *= 1.0 - eta * (self.alpha if self.penalty == "l2" else 0.0)
                w += step
                mean += (w - mean) / t
                t += 1.0
        self.t_ = t
        self.coef_ = (self._mean if self.average else self._last).copy()
        self.intercept_ = np.zeros(len(self.coef_))
        return self

    def decision_function(self, X):
        return X @ self.coef_.T + self.intercept_

    def predict(self, X):
        scores = self.decision_function(X)
        best = scores[:, 0] > 0 if scores.shape[1] == 1 else scores.argmax(axis=1)
        return self.classes_[np.asarray(best, int)]


def _steepness(loss, z):
    if loss == "log_loss":
        return 1.0 / (1.0 + np.exp(min(z, 700.0)))
    return 4.0 if z < -1.0 else max(0.0, 2.0 * (1.0 - z))
