import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from penalties import files
from penalties.errors import InputError, OptionError
from penalties.training.local import LocalTrainingClient
from penalties.training.types import AdamParams, ModelInput, SamplingParams
from tests.training.local.cases import (
    WAIT,
    assert_close,
    assert_same,
    data,
    gradients,
    logprobs,
    normal,
    tiny,
    weights,
)


def train(client: LocalTrainingClient, *steps: int) -> list[Any]:
    """Some steps, and a draw by the client's own random numbers after each."""
    found: list[Any] = []
    for step in steps:
        batch = data(6, 3, seed=step, weights=normal)
        found.append(client.forward_backward(batch, "cross_entropy").result(WAIT).metrics)
        found.append(client.optim_step(AdamParams(1e-2, weight_decay=0.01)).result(WAIT).metrics)
        drawn = client.sample(ModelInput.from_ints([1, 2]), 2, SamplingParams(max_tokens=3)).result(WAIT)
        found.append([one.tokens for one in drawn.sequences])
    return found


def test_resuming_is_the_same_to_the_bit(tmp_path: Path) -> None:
    with tiny(checkpoints=tmp_path) as client:
        train(client, 0, 1)
        saved = client.save_state("two").result(WAIT)
        assert saved.path == str(tmp_path / "two")
        expected = train(client, 2, 3)
        final = weights(client)
    # In another client, and in one that has gone elsewhere meanwhile.
    for steps in ((), (7, 8)):
        with LocalTrainingClient("tiny", device="cpu") as client:
            train(client, *steps)
            client.load_state_with_optimizer(saved.path).result(WAIT)
            assert train(client, 2, 3) == expected
            assert_same(weights(client), final)


def test_accumulated_gradients_are_saved(tmp_path: Path) -> None:
    with tiny(checkpoints=tmp_path) as client:
        train(client, 0)
        client.forward_backward(data(4), "cross_entropy").result(WAIT)
        saved, expected = client.save_state("half").result(WAIT), gradients(client)
        step = client.optim_step(AdamParams(1e-2)).result(WAIT)
        after = weights(client)
        client.load_state_with_optimizer(saved.path).result(WAIT)
        assert_same(gradients(client), expected)
        assert client.optim_step(AdamParams(1e-2)).result(WAIT) == step
        assert_same(weights(client), after)


def test_the_state_before_any_step_can_be_restored(tmp_path: Path) -> None:
    with tiny(checkpoints=tmp_path) as client:
        start = client.save_state("start").result(WAIT)
        expected = train(client, 0, 1)
        client.load_state_with_optimizer(start.path).result(WAIT)
        assert train(client, 0, 1) == expected


def test_load_state_resets_the_optimizer(tmp_path: Path) -> None:
    with tiny(checkpoints=tmp_path) as client, tiny() as fresh:
        train(client, 0, 1)
        saved = client.save_state("two").result(WAIT)
        at = weights(client)
        client.forward_backward(data(4), "cross_entropy").result(WAIT)
        client.load_state(saved.path).result(WAIT)
        fresh.load_state(saved.path).result(WAIT)
        assert_same(weights(client), at)
        assert gradients(client) == {}
        for one in (client, fresh):
            one.forward_backward(data(5), "cross_entropy").result(WAIT)
            one.optim_step(AdamParams(1e-2)).result(WAIT)
        assert_same(weights(client), weights(fresh))


def test_the_adapter_is_in_the_form_of_peft(tmp_path: Path) -> None:
    from peft import PeftModel

    batch = data(6)
    with tiny(checkpoints=tmp_path) as client, tiny() as other:
        train(client, 0)
        expected = logprobs(client.forward(batch).result(WAIT))
        saved = client.save_state("adapter").result(WAIT)
        loaded: Any = PeftModel.from_pretrained(other.model.unload(), saved.path).eval()
        tokens = torch.tensor([batch[0].model_input.to_ints()])
        targets = torch.as_tensor(batch[0].loss_fn_inputs["target_tokens"].to_numpy())
        found = loaded(input_ids=tokens).logits[0].log_softmax(-1).gather(-1, targets[:, None])[:, 0]
        assert_close(found, expected[0])


def test_another_precision_can_load_the_adapter(tmp_path: Path) -> None:
    with tiny(checkpoints=tmp_path) as client, tiny(dtype="bfloat16") as half:
        train(client, 0)
        half.load_state(client.save_state("one").result(WAIT).path).result(WAIT)
        assert_same(weights(half), weights(client))


def test_names_are_in_the_checkpoint_folder_and_paths_are_absolute(tmp_path: Path) -> None:
    with tiny(checkpoints=tmp_path / "a") as client:
        assert client.save_state("deep/one").result(WAIT).path == str(tmp_path / "a" / "deep" / "one")
        assert client.save_state(tmp_path / "b").result(WAIT).path == str(tmp_path / "b")
        client.load_state("deep/one").result(WAIT)


def test_a_name_is_taken_once_unless_it_is_to_be_overwritten(tmp_path: Path) -> None:
    with tiny(checkpoints=tmp_path) as client:
        client.save_state("one").result(WAIT)
        train(client, 0)
        with pytest.raises(InputError, match="one exists; .*overwrite=True"):
            client.save_state("one").result(WAIT)
        client.save_state("one", overwrite=True).result(WAIT)
        at = weights(client)
        train(client, 1)
        client.load_state("one").result(WAIT)
        assert_same(weights(client), at)
        assert [path.name for path in tmp_path.iterdir()] == ["one"]
        with pytest.raises(OptionError, match="overwrite=1; expected True or False"):
            client.save_state("one", overwrite=1)  # pyright: ignore[reportArgumentType]
        for name in (None, ""):
            with pytest.raises(OptionError, match="name=.*; expected the name of a checkpoint, or its folder"):
                client.save_state(name)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_save_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool) -> None:
    with tiny(checkpoints=tmp_path) as client:
        if overwrite:
            client.save_state("one").result(WAIT)
        before = [(path, path.read_bytes()) for path in sorted(tmp_path.rglob("*.*")) if path.is_file()]

        def full(path: Path) -> None:
            raise OSError("no space left")

        monkeypatch.setattr(files, "sync", full)
        train(client, 0)
        with pytest.raises(OSError, match="no space left"):
            client.save_state("one", overwrite=overwrite).result(WAIT)
        assert [(path, path.read_bytes()) for path in sorted(tmp_path.rglob("*.*")) if path.is_file()] == before
        assert not list(tmp_path.glob(".*"))


def test_an_old_checkpoint_stays_if_the_new_one_cannot_replace_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tiny(checkpoints=tmp_path) as client:
        client.save_state("one").result(WAIT)
        at = weights(client)
        train(client, 0)
        real = Path.rename

        def rename(path: Path, target: Path) -> Path:
            if path.suffix == ".part":
                raise OSError("busy")
            return real(path, target)

        monkeypatch.setattr(Path, "rename", rename)
        with pytest.raises(OSError, match="busy"):
            client.save_state("one", overwrite=True).result(WAIT)
        with pytest.raises(OSError, match="busy"):
            client.save_state("two").result(WAIT)
        assert [path.name for path in tmp_path.iterdir()] == ["one"]
        client.load_state("one").result(WAIT)
        assert_same(weights(client), at)


def test_a_kill_while_saving_loses_nothing_and_the_next_save_cleans_up(tmp_path: Path) -> None:
    with tiny(checkpoints=tmp_path) as client:
        client.save_state("a[b]").result(WAIT)
        at = weights(client)
        # As it is between the two steps of overwriting.
        (tmp_path / "a[b]").rename(tmp_path / ".a[b].x1.old")
        (tmp_path / ".a[b].x1.part").mkdir()
        train(client, 0)
        client.load_state("a[b]").result(WAIT)
        assert_same(weights(client), at)
        client.save_state("a[b]").result(WAIT)
        assert [path.name for path in tmp_path.iterdir()] == ["a[b]"]


# What is wrong.


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    with tiny(checkpoints=tmp_path_factory.mktemp("checkpoints")) as client:
        return client.save_state("saved").result(WAIT).path


@pytest.mark.parametrize("method", ["load_state", "load_state_with_optimizer"])
def test_a_checkpoint_has_to_be_there(tmp_path: Path, method: str) -> None:
    with tiny(checkpoints=tmp_path) as client:
        before = weights(client)
        with pytest.raises(InputError, match=f"{method}: {tmp_path}/no does not exist; expected a path"):
            getattr(client, method)("no").result(WAIT)
        with pytest.raises(InputError, match="has no client.json"):
            getattr(client, method)(tmp_path).result(WAIT)
        assert_same(weights(client), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 4}, r"differ in rank \(8, not 4\)"),
        ({"alpha": 8}, r"differ in alpha \(32, not 8\)"),
        ({"seed": 1}, r"differ in weights;"),
        ({"target_modules": ["q_proj"]}, "differ in layers;"),
    ],
)
def test_a_checkpoint_of_another_model_raises(saved: str, options: dict[str, Any], message: str) -> None:
    with tiny(**options) as client:
        before = weights(client)
        with pytest.raises(InputError, match=f"was saved by another model, .* {message}"):
            client.load_state_with_optimizer(saved).result(WAIT)
        assert_same(weights(client), before)


@pytest.mark.parametrize("name", ["client.json", "adapter_model.safetensors", "training.safetensors"])
def test_a_damaged_checkpoint_raises_and_changes_nothing(tmp_path: Path, name: str) -> None:
    with tiny(checkpoints=tmp_path) as client:
        saved = Path(client.save_state("one").result(WAIT).path)
        (saved / name).write_bytes((saved / name).read_bytes()[:-20])
        train(client, 0)
        before = weights(client)
        with pytest.raises(InputError, match="one cannot be read: "):
            client.load_state(saved).result(WAIT)
        assert_same(weights(client), before)


@pytest.mark.parametrize("text", ["[]", "null", "5"])
def test_so_does_one_that_is_not_described_by_an_object(tmp_path: Path, text: str) -> None:
    with tiny(checkpoints=tmp_path) as client:
        (Path(client.save_state("one").result(WAIT).path) / "client.json").write_text(text)
        with pytest.raises(InputError, match=r"one cannot be read: client.json is not a JSON object"):
            client.load_state("one").result(WAIT)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *((name, "missing") for name in ("lora_A", "step/", "exp_avg/", "generator")),
        *((name, "shape") for name in ("lora_A", "step/", "exp_avg/", "gradient/", "generator", "micro_batch_tokens")),
    ],
)
def test_so_does_one_without_a_tensor_or_with_one_of_another_shape(tmp_path: Path, name: str, change: str) -> None:
    with tiny(checkpoints=tmp_path) as client:
        train(client, 0)
        client.forward_backward(data(4), "cross_entropy").result(WAIT)
        saved = Path(client.save_state("one").result(WAIT).path)
        path = saved / ("adapter_model.safetensors" if name == "lora_A" else "training.safetensors")
        tensors = {**load_file(path), "micro_batch_tokens": torch.tensor(64)}
        key = next(key for key in tensors if name in key)
        changed = {} if change == "missing" else {key: torch.ones(7, dtype=tensors[key].dtype)}
        save_file({other: one for other, one in tensors.items() if other != key} | changed, path)
        train(client, 1)
        before = weights(client)
        with pytest.raises(InputError, match=f"one cannot be read: it has no .*{name}.*, or one of another shape"):
            client.load_state_with_optimizer(saved).result(WAIT)
        assert_same(weights(client), before)


def test_a_checkpoint_of_another_version_raises(tmp_path: Path) -> None:
    with tiny(checkpoints=tmp_path) as client:
        about = Path(client.save_state("one").result(WAIT).path) / "client.json"
        about.write_text(json.dumps({**json.loads(about.read_text()), "form": 9}))
        with pytest.raises(InputError, match=r"differ in form \(9, not 1\)"):
            client.load_state("one").result(WAIT)
