"""Data sets that come with their users: FEMNIST by writer, Shakespeare by speaking role.

Read from TensorFlow Federated's files or LEAF's. There are some 3,400 writers, and 700 to 1,100
roles of very different length: noise that hides one role leaves little, so its network is small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.mechanisms import Clip
from fedpriv.parts import Between, Part, PositiveInt
from fedpriv.training.local.schedule import LocalSgd

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from fedpriv.tasks.module_task import ModuleTask


# torch takes seconds to import, and experiments are listed for `fedpriv --help`.


@dataclass(frozen=True, slots=True, kw_only=True)
class _NaturalUsers(Part):
    """Options of a data set that comes with its users.

    Attributes:
        users: Only the roster's first so many users, for quick trials.
        public: Share of users who are public; half of them are learnt from.
    """

    users: PositiveInt | None = None
    public: Between = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class FemnistTask(_NaturalUsers):
    """Classification of handwritten characters by their writers, from TFF's file or LEAF's.

    Writers who are public by a hash of their ids teach public models and measure released ones;
    they are on no roster. The test examples are others of the rostered writers: TFF's own test
    split, or the last fifth of each.

    Attributes:
        path: emnist_all.sqlite.lzma of TFF (or unpacked), or a file or folder of LEAF's JSON; none
            for what `fedpriv data fetch emnist` got.
        characters: Ten digits, or 62 with letters.
        network: linear: softmax regression; convolutions: a small network.
    """

    path: str | None = None
    characters: Literal["digits", "all"] = "digits"
    network: Literal["linear", "convolutions"] = "convolutions"

    def __call__(self, experiment: object) -> ModuleTask:
        """Return the task.

        Raises:
            ValueError: If the files are missing or damaged, or have too few users.
        """
        import numpy as np
        from torch import nn
        from torch.nn.functional import cross_entropy

        from fedpriv.datasets.leaf import read_leaf_femnist
        from fedpriv.experiments.ready_made.held_out import read_users, task_of_users
        from fedpriv.models.images import DigitClassifier, SoftmaxRegression

        classes = 10 if self.characters == "digits" else 62
        kind = "digits_only" if self.characters == "digits" else "all"

        def kept(users: dict[str, Any]) -> dict[str, Any]:
            """Return users' examples of the classes, with ink 1 and paper 0 as in MNIST."""
            chosen = {user: (x, y, y < classes) for user, (x, y) in users.items()}
            return {
                user: (np.float32(1.0) - x[own], y[own])
                for user, (x, y, own) in chosen.items()
                if own.any()
            }

        def linear() -> nn.Module:
            return nn.Sequential(nn.Flatten(), SoftmaxRegression(784, classes))

        path, train, test = read_users(
            self.path, "emnist", "emnist_all", (f"{kind}_train", f"{kind}_test"), read_leaf_femnist
        )
        return task_of_users(
            "femnist",
            kept(train),
            None if test is None else kept(test),
            public=self.public,
            users=self.users,
            module=linear if self.network == "linear" else lambda: DigitClassifier(classes),
            loss=cross_entropy,
            path=path,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShakespeareTask(_NaturalUsers):
    """The next character at each place of a role's lines.

    Roles that are public by a hash of their names teach public models and measure released ones;
    they are on no roster. The test examples are others of the rostered roles: TFF's own test split,
    or the last fifth of each, of which none overlaps with training.

    Attributes:
        path: shakespeare.sqlite.lzma of TFF (or unpacked), or a file or folder of LEAF's JSON; none
            for what `fedpriv data fetch shakespeare` got.
        model: reduced: 64 units, 20,636 parameters; full: 256 units and 274,844.
    """

    path: str | None = None
    model: Literal["reduced", "full"] = "reduced"

    def __call__(self, experiment: object) -> ModuleTask:
        """Return the task.

        Raises:
            ValueError: If the files are missing or damaged, or have too few users.
        """
        import numpy as np

        from fedpriv.datasets.leaf import SEQUENCE, read_leaf_shakespeare
        from fedpriv.datasets.tff_files import NUM_CODES
        from fedpriv.experiments.ready_made.held_out import read_users, task_of_users
        from fedpriv.models.text import WordLSTM, next_word_loss

        def of_leaf(path: Any) -> dict[str, tuple[np.ndarray, np.ndarray]]:
            # LEAF asks for the last one alone; here every next character is a target.
            lines = read_leaf_shakespeare(path).items()
            return {u: (x, np.concatenate([x[:, 1:], y[:, None]], axis=1)) for u, (x, y) in lines}

        path, train, test = read_users(
            self.path, "shakespeare", "shakespeare", ("train", "test"), of_leaf
        )
        units = 64 if self.model == "reduced" else 256
        return task_of_users(
            "shakespeare",
            train,
            test,
            public=self.public,
            users=self.users,
            module=lambda: WordLSTM(NUM_CODES, width=8, units=units),
            loss=next_word_loss,
            path=path,
            apart=SEQUENCE,
        )


def femnist_users() -> FederatedExperiment:
    """DP-FedAvg on FEMNIST by its writers, from files of TFF's or LEAF's."""
    return FederatedExperiment(
        name="femnist-users",
        description="DP-FedAvg on handwritten characters by their writers (FEMNIST).",
        task=FemnistTask(),
        rounds=100,
        local=LocalSgd(learning_rate=0.1, batch_size=20),
        bound=Clip(l2_clip_norm=1.0),
        target_epsilon=8.0,
    )


def shakespeare_characters() -> FederatedExperiment:
    """DP-FedAvg on next characters by role, from files of TFF's or LEAF's."""
    return FederatedExperiment(
        name="shakespeare-characters",
        description="DP-FedAvg on next characters of Shakespeare by speaking role.",
        task=ShakespeareTask(),
        local=LocalSgd(learning_rate=1.0, batch_size=10, max_examples_per_user=64),
        bound=Clip(l2_clip_norm=1.0),
        target_epsilon=8.0,
    )


EXPERIMENTS = (femnist_users, shakespeare_characters)
