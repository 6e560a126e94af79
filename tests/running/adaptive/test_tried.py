"""An adaptive experiment of one's own is tried before anything is charged."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.running.adaptive.descent import CHARGES, changed, start


class TestTried:
    def test_a_mistake_in_any_work_ends_the_run_with_nothing_written(self):
        """Red before: works by name have no `train`, and the run ended in an AttributeError."""
        changed("np.linalg.norm(examples - w)", "np.linalg.norm(example - w)")
        with pytest.raises(NameError) as caught:
            start("run")
        assert "before anything was charged" in caught.value.__notes__[0]
        assert not Path("run").exists()

    def test_so_does_one_in_the_algorithm(self):
        changed('door.ask(asked).update["losses"]', 'door.ask(asked).update["loss"]')
        with pytest.raises(KeyError, match="loss"):
            start("run")
        assert not Path("run").exists()

    @pytest.mark.parametrize("says", [True, False])
    def test_a_work_of_ones_own_is_tried(self, says):
        failed = "contributes_zero(error)" if says else "pass"
        changed(
            "class Near(Task):",
            f"""from fedpriv.training.work import Work


class Whole(Work):
    def answer(self, request):
        from fedpriv.sums import PartialSum
        from fedpriv.training.failures import contributes_zero
        failed = 0
        for user in request.user_ids:
            try:
                request.data.examples(user).gone
            except AttributeError as error:
                {failed}
                failed += 1
        return PartialSum(
            total=request.params, num_users=len(request.user_ids), num_failed=failed)


class Near(Task):""",
        )
        source = Path("own_descent.py").read_text("utf-8")
        source = source.replace('"train": UserByUser(trainer=Gradient())', '"train": Whole()')
        Path("own_descent.py").write_text(source, "utf-8")
        said = "'gone'" if says else "work 'train' fails on what"
        with pytest.raises(AttributeError if says else ValueError, match=said):
            start("run")
        assert not Path("run").exists()

    def test_no_rostered_user_is_looked_at(self):
        changed(
            "        return np.array([1, 2, 3], np.float32) +",
            "        LOOKED.append(user_id)\n        return np.array([1, 2, 3], np.float32) +",
        )
        source = Path("own_descent.py").read_text("utf-8")
        Path("own_descent.py").write_text(source.replace("SIZES =", "LOOKED = []\nSIZES =", 1))
        prepared = start("run")
        looked = sys.modules["own_descent"].LOOKED
        assert looked == []
        prepared.run()
        assert len(looked) == 12 * CHARGES

    def test_and_shapes_that_do_not_fit(self):
        changed('return {"w": examples - params["w"]}', 'return {"w": examples[:2]}')
        with pytest.raises(ValueError, match="w"):
            start("run")
        assert not Path("run").exists()
