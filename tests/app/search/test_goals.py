"""By what a search judges a run."""

from pathlib import Path

import pytest

from penalties.app.config import load
from penalties.app.runs import Run
from penalties.app.runs.disk import RunError
from penalties.app.search import Constraint, Goal, constraint_of
from penalties.app.search.goals import check_names, measures

from ..stand_ins import records, write_config


class TestConstraints:
    @pytest.mark.parametrize(
        ("text", "wanted"),
        [
            ("kl<0.1", Constraint("kl", False, 0.1)),
            (" eval.kl <= 1e-2 ", Constraint("kl", False, 0.01)),
            ("base_loss/accuracy>0.5", Constraint("base_loss/accuracy", True, 0.5)),
        ],
    )
    def test_are_read(self, text: str, wanted: Constraint) -> None:
        assert constraint_of(text) == wanted
        assert constraint_of(str(wanted)) == wanted

    @pytest.mark.parametrize("text", ["kl", "kl<", "<0.1", "kl=0.1", "kl<a", "kl<nan", "kl<<1"])
    def test_anything_else_is_an_error(self, text: str) -> None:
        with pytest.raises(RunError, match="expected a metric and a limit, such as kl<0.1") as raised:
            constraint_of(text)
        assert raised.value.status == 2

    def test_a_limit_itself_is_allowed(self) -> None:
        assert [constraint_of("kl<0.5").excess(value) for value in (0.25, 0.5, 1.0)] == [-0.25, 0.0, 0.5]
        assert [constraint_of("kl>0.5").excess(value) for value in (0.25, 0.5, 1.0)] == [0.25, 0.0, -0.5]


class TestNames:
    def test_metrics_of_the_config_are_known(self, tmp_path: Path) -> None:
        config = load(write_config(tmp_path))
        check_names(config, ["loss", "base_loss", "kl", "kl_weighted", "counting/seen"])

    @pytest.mark.parametrize("name", ["kll", "kll_weighted", "kll/x"])
    def test_an_unknown_one_is_an_error(self, tmp_path: Path, name: str) -> None:
        told = f'no evaluation has "{name}".*loss, base_loss, kl, entropy and counting'
        with pytest.raises(RunError, match=told) as raised:
            check_names(load(write_config(tmp_path)), [name])
        assert raised.value.status == 2

    def test_without_held_out_data_there_are_none(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match="set data.eval_path"):
            check_names(load(write_config(tmp_path), ["data.eval_path="]), ["base_loss"])


class TestMeasures:
    def test_are_those_of_the_last_evaluation(self, finished: Run) -> None:
        found = measures(finished)
        loss = records(finished, "eval")[-1]["loss"]
        assert found["loss"] == loss["loss_total"]
        assert found["base_loss"] == loss["base_loss"]["value"]
        assert found["kl"] == loss["regularizers"]["kl"]["value"]
        assert found["kl_weighted"] == loss["regularizers"]["kl"]["contribution"]
        assert found["counting/seen"] == loss["regularizers"]["counting"]["custom"]["seen"]

    def test_a_run_without_any_has_none(self, tmp_path: Path) -> None:
        assert measures(Run(tmp_path)) == {}

    def test_a_prefix_may_be_left_out(self) -> None:
        assert Goal.of("eval.kl") == Goal.of("kl")
