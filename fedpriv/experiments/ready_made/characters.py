"""Next characters of Shakespeare by speaking role, from TFF's file or LEAF's.

There are some 700 to 1,100 roles, of very different length, so that noise which hides one of them
leaves little; the network is small for that reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.experiments.bounds import AdaptableClip
from fedpriv.experiments.local import LocalSgd
from fedpriv.experiments.noise import GaussianNoise
from fedpriv.experiments.options import option
from fedpriv.ranges import Range

if TYPE_CHECKING:
    from fedpriv.tasks.module_task import ModuleTask


@dataclass(frozen=True, slots=True, kw_only=True)
class ShakespeareTask:
    """The next character at each place of a role's lines.

    Roles that are public by a hash of their names teach public models and measure released ones;
    they are on no roster. The test examples are others of the rostered roles: TFF's own test split,
    or the last fifth of each, of which none overlaps with training.
    """

    path: str | None = option(
        None,
        "shakespeare.sqlite.lzma of TFF (or unpacked), or a file or folder of LEAF's JSON; none "
        "for what `fedpriv data fetch shakespeare` got.",
    )
    users: int | None = option(
        None, "Only the roster's first so many users, for quick trials.", Range.AT_LEAST_ONE
    )
    public: float = option(
        0.1, "Share of roles that are public; half of them are learnt from.", Range.BETWEEN
    )
    model: Literal["reduced", "full"] = option(
        "reduced", "reduced: 64 units, 20,636 parameters; full: 256 units and 274,844."
    )

    def __call__(self, experiment: object) -> ModuleTask:
        """Return the task.

        Raises:
            ValueError: If the files are missing or damaged, or have too few users.
        """
        from pathlib import Path

        import numpy as np

        from fedpriv.datasets.leaf import SEQUENCE, read_leaf_shakespeare
        from fedpriv.datasets.raw_files import find_files
        from fedpriv.datasets.tff_files import NUM_CODES, read_tff_users
        from fedpriv.experiments.ready_made.held_out import task_of_users
        from fedpriv.models.text import WordLSTM, next_word_loss

        if self.path is None:
            choices = (("shakespeare.sqlite.lzma",), ("shakespeare.sqlite",))
            get = "get it with `fedpriv data fetch shakespeare`, or give its path"
            (path,) = find_files("shakespeare", choices, get=get)
        else:
            path = Path(self.path).expanduser()

        def of_leaf(path: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
            # LEAF asks for the last one alone; here every next character is a target.
            lines = read_leaf_shakespeare(path).items()
            return {u: (x, np.concatenate([x[:, 1:], y[:, None]], axis=1)) for u, (x, y) in lines}

        parts = [path / name for name in ("train", "test")]
        if all(part.is_dir() for part in parts):
            train, test = map(of_leaf, parts)
        elif path.is_dir() or ".json" in path.name:
            train, test = of_leaf(path), None
        else:
            train, test = (read_tff_users(path, split_name=part.name) for part in parts)
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


def shakespeare_characters() -> FederatedExperiment:
    """DP-FedAvg on next characters by role, from files of TFF's or LEAF's."""
    return FederatedExperiment(
        name="shakespeare-characters",
        description="DP-FedAvg on next characters of Shakespeare by speaking role.",
        task=ShakespeareTask(),
        local=LocalSgd(learning_rate=1.0, batch_size=10, max_examples_per_user=64),
        bound=AdaptableClip(l2_clip_norm=1.0),
        noise=GaussianNoise(target_epsilon=8.0),
    )


EXPERIMENTS = (shakespeare_characters,)
