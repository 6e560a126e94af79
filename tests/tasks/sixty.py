"""A centralised task of sixty examples, whose label is the sign of their first feature."""

import numpy as np
from scipy import sparse

from fedpriv.tasks.central import CentralTask, zeros
from fedpriv.training.per_example.linear import LogisticGradients, linear_metrics


def features_and_labels():
    """Sixty rows of five normals, sparse, and their labels of 0 and 1."""
    rng = np.random.default_rng(0)
    x = sparse.csr_matrix(rng.normal(size=(60, 5)).astype(np.float32))
    return x, (x.toarray()[:, 0] > 0).astype(np.int64)


def sixty(**more):
    """The task, with more of what a CentralTask may have."""
    x, y = features_and_labels()
    return CentralTask(
        name="sixty",
        train=LogisticGradients(x, y),
        num_train=60,
        init=zeros({"weight": (5,), "bias": (1,)}),
        measure=lambda params: linear_metrics(params, x, y),
        synthetic=True,
        **{"data_sha256": lambda: {"private": "60" * 32}, **more},
    )
