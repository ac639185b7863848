"""The variants of an ablation: which there are, and that they differ by nothing else."""

from pathlib import Path

import pytest

from penalties.app.ablation import check_baseline, variants
from penalties.app.config import ConfigError
from penalties.app.runs.disk import RunError

from ..stand_ins import TERMS, write_config
from .records import loading

pytestmark = pytest.mark.usefixtures("backends")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_config(tmp_path, steps=4)


class TestVariants:
    def test_each_term_is_removed_in_turn(self, path: Path) -> None:
        made = variants(loading(path))
        assert [variant.name for variant in made] == ["all", "without kl", "without entropy", "without counting"]
        assert [[term.name for term in variant.config.term] for variant in made] == [
            ["kl", "entropy", "counting"],
            ["entropy", "counting"],
            ["kl", "counting"],
            ["kl", "entropy"],
        ]
        assert [variant.folder for variant in made][:2] == ["all-seed-0", "without-kl-seed-0"]

    def test_each_term_is_kept_alone(self, path: Path) -> None:
        made = variants(loading(path), keep=True)
        assert [variant.name for variant in made] == ["all", "only kl", "only entropy", "only counting"]
        assert [[term.name for term in variant.config.term] for variant in made[1:]] == [
            ["kl"],
            ["entropy"],
            ["counting"],
        ]

    def test_a_sweep_varies_one_value(self, path: Path) -> None:
        made = variants(loading(path), sweeps=["kl.weight=0.01, 0.5,1", "train.learning_rate=0.2"])
        # 0.5 is what the config has.
        assert [variant.name for variant in made] == ["all", "kl.weight=0.01", "kl.weight=1", "train.learning_rate=0.2"]
        assert [variant.config.term[0].weight for variant in made] == [0.5, 0.01, 1.0, 0.5]
        assert made[-1].config.train.learning_rate == 0.2

    def test_seeds_are_of_the_model_and_the_order_of_the_data(self, path: Path) -> None:
        made = variants(loading(path), seeds=2)
        assert [(variant.name, variant.seed) for variant in made][:5] == [
            ("all", 0),
            ("without kl", 0),
            ("without entropy", 0),
            ("without counting", 0),
            ("all", 1),
        ]
        assert all(variant.config.train.seed == variant.seed for variant in made)
        assert len({variant.folder for variant in made}) == 8

    def test_values_may_be_lists_and_strings_with_commas(self, path: Path) -> None:
        sweeps = ['kl.inputs=["logprobs", "initial"],{logprobs = "logprobs", reference = "initial"}']
        made = variants(loading(path), sweeps=[*sweeps, "kl.name='x,y','z'"])
        assert [variant.name for variant in made[1:]] == [
            'kl.inputs={logprobs = "logprobs", reference = "initial"}',
            "kl.name='x,y'",
            "kl.name='z'",
        ]

    @pytest.mark.parametrize("sweep", ["kl.weight", "=1,2", "kl.weight=", "kl.weight=1,,2"])
    def test_a_malformed_sweep_is_an_error(self, path: Path, sweep: str) -> None:
        with pytest.raises(RunError, match="expected a key and its values, such as kl.weight=0.01,0.1,1") as raised:
            variants(loading(path), sweeps=[sweep])
        assert raised.value.status == 2

    def test_a_wrong_value_is_found_before_anything_is_trained(self, path: Path) -> None:
        with pytest.raises(ConfigError, match="weight"):
            variants(loading(path), sweeps=["kl.weight=1,heavy"])

    def test_without_terms_there_is_nothing_to_remove(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match="no enabled \\[\\[term\\]\\]"):
            variants(loading(write_config(tmp_path, terms="")))

    @pytest.mark.parametrize("by", ["counting", "counting_weighted", "counting/seen"])
    @pytest.mark.parametrize(
        ("sweeps", "keep", "variant"),
        [
            ([], False, "without counting"),
            ([], True, "only kl"),
            (["counting.enabled=false"], False, "counting.enabled=false"),
        ],
    )
    def test_the_metric_of_the_best_checkpoint_is_in_all(
        self, tmp_path: Path, by: str, sweeps: list[str], keep: bool, variant: str
    ) -> None:
        path = write_config(tmp_path, best_by=by)
        with pytest.raises(RunError, match=f'the variant "{variant}" does not have "{by}", by which') as raised:
            variants(loading(path), sweeps=sweeps, keep=keep)
        assert raised.value.status == 2
        assert len(variants(loading(write_config(tmp_path, best_by="base_loss")), sweeps=sweeps, keep=keep)) > 1

    def test_each_has_something_to_train_on(self, tmp_path: Path) -> None:
        path = write_config(tmp_path, terms=TERMS.partition("\n\n")[0], loss="none")
        with pytest.raises(RunError, match='"without kl" has neither a loss nor a term') as raised:
            variants(loading(path))
        assert raised.value.status == 2
        assert [one.name for one in variants(loading(path), keep=True)] == ["all"]

    def test_a_term_that_is_not_enabled_is_not_removed(self, path: Path) -> None:
        loaded = loading(path, "kl.enabled=false")
        assert [one.name for one in variants(loaded)] == ["all", "without entropy", "without counting"]
        assert [one.name for one in variants(loaded, keep=True)] == ["all", "only entropy", "only counting"]

    def test_one_value_in_two_spellings_is_one(self, path: Path) -> None:
        trials = variants(loading(path), sweeps=["kl.weight=0.1,0.10,0.1,0.5,2"])
        assert [one.name for one in trials] == ["all", "kl.weight=0.1", "kl.weight=2"]


class TestGrids:
    def test_every_combination_is_a_variant(self, path: Path) -> None:
        made = variants(loading(path), grids=["kl.weight=0.5,1", "train.learning_rate=0.1,0.05,0.2"])
        assert [one.name for one in made] == [
            "all",
            "kl.weight=0.5, train.learning_rate=0.1",
            "kl.weight=0.5, train.learning_rate=0.2",
            "kl.weight=1, train.learning_rate=0.1",
            "kl.weight=1, train.learning_rate=0.05",
            "kl.weight=1, train.learning_rate=0.2",
        ]
        assert [one.settings for one in made[:2]] == [
            {"kl.weight": 0.5, "train.learning_rate": 0.05},
            {"kl.weight": 0.5, "train.learning_rate": 0.1},
        ]
        assert made[1].config.train.learning_rate == 0.1

    def test_stands_beside_a_sweep(self, path: Path) -> None:
        made = variants(loading(path), sweeps=["kl.weight=2"], grids=["entropy.weight=0.1,0.2"])
        assert [one.name for one in made] == ["all", "kl.weight=2", "entropy.weight=0.1", "entropy.weight=0.2"]

    def test_a_key_that_is_given_twice_is_an_error(self, path: Path) -> None:
        with pytest.raises(RunError, match="--grid kl.weight: given twice; expected all values of a key") as raised:
            variants(loading(path), grids=["kl.weight=1", "kl.weight=2"])
        assert raised.value.status == 2

    def test_a_malformed_grid_is_an_error(self, path: Path) -> None:
        with pytest.raises(RunError, match="--grid kl.weight: expected a key and its values"):
            variants(loading(path), grids=["kl.weight"])


class TestFacts:
    def test_settings_are_the_values_of_the_config(self, path: Path) -> None:
        made = variants(loading(path), sweeps=["term.kl.weight=1e-1", "train.loss_options={}", "counting.every=3"])
        assert made[0].settings == {"term.kl.weight": 0.5, "counting.every": 2}
        assert [one.settings for one in made[1:]] == [{"term.kl.weight": 0.1}, {"counting.every": 3}]

    def test_a_removed_term_is_named(self, path: Path) -> None:
        assert [one.removed for one in variants(loading(path))] == [None, "kl", "entropy", "counting"]
        assert {one.removed for one in variants(loading(path), keep=True)} == {None}

    def test_a_loss_measures_the_function_and_the_data_it_is_evaluated_on(self, path: Path, tmp_path: Path) -> None:
        one = variants(loading(path))[0].measure
        assert one["train.loss"] == "cross_entropy"
        assert one["data.eval_path"] == str(tmp_path / "held_out.jsonl")
        other = variants(loading(path, "data.eval_path="))[0].measure
        assert other["data.path"] == str(tmp_path / "data.jsonl")

    def test_a_loss_measures_how_texts_are_cut_and_averaged(self, path: Path) -> None:
        whole, *others = variants(loading(path), sweeps=["data.max_length=8", "train.reduction=sum"])
        assert [[key for key in whole.measure if whole.measure[key] != one.measure[key]] for one in others] == [
            ["data.max_length"],
            ["train.reduction"],
        ]

    def test_a_sum_measures_the_size_of_a_batch(self, path: Path) -> None:
        assert "train.batch_size" not in variants(loading(path))[0].measure
        whole, other = variants(loading(path, "train.reduction=sum"), sweeps=["train.batch_size=2"])
        assert [key for key in whole.measure if whole.measure[key] != other.measure[key]] == ["train.batch_size"]

    def test_a_baseline_that_is_no_variant_is_an_error(self, path: Path) -> None:
        made = variants(loading(path))
        check_baseline(made, "without kl")
        told = "no variant has this name; did you mean without kl\\? \\(all, without kl, without entropy, without c"
        with pytest.raises(RunError, match=f"--baseline without k: {told}") as raised:
            check_baseline(made, "without k")
        assert raised.value.status == 2
