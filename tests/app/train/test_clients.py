"""Backends: the same run on a model in this process and on a server, and keys that stay where they are."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from penalties.app.config import Config
from penalties.app.config.tables import BackendTable, ClientTable
from penalties.app.runs.disk import RunError
from penalties.app.train import Interrupted, train
from penalties.app.train.clients import Local, Tinker, connect
from penalties.errors import MissingLibraryError
from penalties.training import Datum, LocalTrainingClient, ModelInput, OptimStepResponse
from tests.servers.averaging import AveragingClient
from tests.servers.protocol_server import ProtocolServer
from tests.servers.service import Settings

from ..data.tokenizers import model_folder
from ..stand_ins import comparable, killing, toy_config

pytestmark = pytest.mark.timeout(120)

KEY = "tml-test"
TERMS = """
[[term]]
fn = "kl_estimate"
name = "kl"
weight = 0.5
inputs = ["logprobs", "initial"]

[[term]]
fn = "entropy_estimate"
name = "entropy"
weight = 0.3
inputs = "logprobs"
wrap = [{ kind = "ema", decay = 0.5 }]
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProtocolServer]:
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    monkeypatch.delenv("TINKER_BASE_URL", raising=False)
    made: list[LocalTrainingClient] = []

    def local(base: str, rank: int, seed: int) -> LocalTrainingClient:
        made.append(LocalTrainingClient(base, rank=rank, seed=seed, checkpoints=tmp_path / "served"))
        return made[-1]

    with ProtocolServer(local, Settings(api_key=KEY)) as server:
        yield server
    for client in made:
        client.close()


def remote(config: Config, url: str | None) -> Config:
    return config.model_copy(update={"backend": BackendTable(kind="tinker", base_url=url)})


def curve(run: Any) -> list[dict[str, float]]:
    found: list[dict[str, float]] = []
    for record in run.records():
        if record["kind"] != "event":
            loss = record["loss"]
            terms = {name: part["value"] for name, part in loss["regularizers"].items()}
            found.append({"total": loss["loss_total"], "base": loss["base_loss"]["value"], **terms})
    return found


class TestBothBackends:
    def test_have_the_same_curve(self, tmp_path: Path, server: ProtocolServer) -> None:
        config = toy_config(tmp_path, TERMS, learning_rate=0.01)
        here = train(config, tmp_path / "here")
        there = train(remote(config, server.url), tmp_path / "there")
        for one, other in zip(curve(here), curve(there), strict=True):
            assert one == pytest.approx(other, rel=1e-4, abs=1e-5)
        files = [path for path in there.folder.rglob("*") if path.is_file()]
        assert len(files) > 3
        for path in files:
            assert KEY.encode() not in path.read_bytes(), path

    def test_have_the_same_curve_over_the_likeliest_tokens(self, tmp_path: Path, server: ProtocolServer) -> None:
        more = 'near = { kind = "initial", top_k = 12 }\n'
        terms = f"{TERMS}\n[[term]]\nfn = 'kl_divergence'\nweight = 0.5\ninputs = ['logprobs.near', 'near']\n"
        config = toy_config(tmp_path, terms, more, learning_rate=0.01)
        here = train(config, tmp_path / "here")
        there = train(remote(config, server.url), tmp_path / "there")
        for one, other in zip(curve(here), curve(there), strict=True):
            assert one == pytest.approx(other, rel=1e-4, abs=1e-5)
        assert curve(here)[-1]["kl_divergence"] > 1e-4
        with pytest.raises(Interrupted):
            train(remote(config, server.url), tmp_path / "run", progress=killing(3))
        run = train(remote(config, server.url), tmp_path / "run", resume=True)
        for one, other in zip(curve(run), curve(there), strict=True):
            assert one == pytest.approx(other, rel=1e-6, abs=1e-7)

    def test_resume_with_the_same_curve(self, tmp_path: Path, server: ProtocolServer) -> None:
        config = remote(toy_config(tmp_path, TERMS, learning_rate=0.01), server.url)
        whole = train(config, tmp_path / "whole")
        with pytest.raises(Interrupted):
            train(config, tmp_path / "run", progress=killing(3))
        run = train(config, tmp_path / "run", resume=True)
        for one, other in zip(curve(run), curve(whole), strict=True):
            assert one == pytest.approx(other, rel=1e-6, abs=1e-7)

    def test_the_initial_model_is_evaluated_before_the_first_step(self, tmp_path: Path, server: ProtocolServer) -> None:
        train(remote(toy_config(tmp_path, TERMS, eval_every=100), server.url), tmp_path / "run")
        done = [execution.operation for execution in server.executed]
        # Three batches have all the lines there are, and two those that are held out.
        assert done[: done.index("forward_backward")].count("forward") == 5 + 2 + 1
        assert done.count("forward") == 5 + 2 + 6 + 2


class TestMicroBatches:
    def test_have_the_curve_of_the_whole_batch(self, tmp_path: Path) -> None:
        whole = train(toy_config(tmp_path, TERMS, learning_rate=0.01), tmp_path / "whole")
        parts = train(toy_config(tmp_path, TERMS, learning_rate=0.01, micro_batch_tokens=12), tmp_path / "parts")
        for one, other in zip(curve(parts), curve(whole), strict=True):
            assert one == pytest.approx(other, rel=1e-4, abs=1e-5)

    def test_resume_to_the_bit(self, tmp_path: Path) -> None:
        config = toy_config(tmp_path, TERMS, learning_rate=0.01, micro_batch_tokens=12)
        whole = train(config, tmp_path / "whole")
        with pytest.raises(Interrupted):
            train(config, tmp_path / "run", progress=killing(3))
        run = train(config, tmp_path / "run", resume=True)
        assert comparable(run.records()) == comparable(whole.records())

    @pytest.mark.parametrize(
        "more", ["", '[[term]]\nfn = "l2"\nname = "whole"\ninputs = "logprobs"\nseparable = false']
    )
    def test_grouped_by_length_resume_to_the_bit(self, tmp_path: Path, more: str) -> None:
        data = "group_by_length = true\n"
        config = toy_config(tmp_path, TERMS, more, data, learning_rate=0.01, micro_batch_tokens=30)
        whole = train(config, tmp_path / "whole")
        with pytest.raises(Interrupted):
            train(config, tmp_path / "run", progress=killing(3))
        run = train(config, tmp_path / "run", resume=True)
        assert comparable(run.records()) == comparable(whole.records())

    @pytest.mark.parametrize("limit", [None, 30])
    def test_packed_they_have_the_same_curve_and_resume_to_the_bit(self, tmp_path: Path, limit: int | None) -> None:
        plain = train(toy_config(tmp_path, TERMS, learning_rate=0.01), tmp_path / "plain")
        limits = {} if limit is None else {"micro_batch_tokens": limit}
        config = toy_config(tmp_path, TERMS, learning_rate=0.01, packing=True, **limits)
        whole = train(config, tmp_path / "whole")
        for one, other in zip(curve(whole), curve(plain), strict=True):
            assert one == pytest.approx(other, rel=1e-4, abs=1e-5)
        with pytest.raises(Interrupted):
            train(config, tmp_path / "run", progress=killing(3))
        run = train(config, tmp_path / "run", resume=True)
        assert comparable(run.records()) == comparable(whole.records())

    @pytest.mark.parametrize(
        ("model", "more"),
        [
            ("lora_dropout = 0.3\ncheckpointing = true", {}),
            ("lora_dropout = 0.3", {"packing": True}),
            ('adapter = "none"', {}),
            ('modules_to_save = ["lm_head"]', {"optimizer": "adamw8bit"}),
        ],
    )
    @pytest.mark.slow
    def test_with_options_of_the_model_resume_to_the_bit(
        self, tmp_path: Path, model: str, more: dict[str, Any]
    ) -> None:
        limits = {"learning_rate": 0.01, "micro_batch_tokens": 30, **more}
        config = toy_config(tmp_path, TERMS, f"[model]\n{model}\n", **limits)
        whole = train(config, tmp_path / "whole")
        with pytest.raises(Interrupted):
            train(config, tmp_path / "run", progress=killing(3))
        run = train(config, tmp_path / "run", resume=True)
        assert comparable(run.records()) == comparable(whole.records())

    def test_a_run_may_be_resumed_in_parts(self, tmp_path: Path) -> None:
        with pytest.raises(Interrupted):
            train(toy_config(tmp_path, TERMS), tmp_path / "run", progress=killing(3))
        run = train(toy_config(tmp_path, TERMS, micro_batch_tokens=12), tmp_path / "run", resume=True)
        assert list(run.records())[-1]["event"] == "finished"

    def test_a_teacher_has_them_too(self, tmp_path: Path) -> None:
        backend = connect(toy_config(tmp_path, micro_batch_tokens=3))
        teacher = backend.another(ClientTable(kind="client", model="tiny", seed=3))
        seen: list[int] = []
        data = [Datum(ModelInput.from_ints([1, 2]), {"target_tokens": [2, 3]})] * 2
        teacher.forward(data).result()
        embedding = teacher.model.get_base_model().get_input_embeddings()
        embedding.register_forward_pre_hook(lambda module, args: seen.append(args[0].numel()))
        teacher.forward(data).result()
        backend.close("success")
        assert seen == [2, 2]


class Wordless(LocalTrainingClient):
    """One that reports nothing about a step."""

    def optim_step(self, adam_params: Any) -> Any:
        return super().optim_step(adam_params).then(lambda _: OptimStepResponse())


class TestProbe:
    def serving(self, folder: Path, kind: type[LocalTrainingClient]) -> ProtocolServer:
        return ProtocolServer(
            lambda base, rank, seed: kind(base, rank=rank, seed=seed, checkpoints=folder / "served"),
            Settings(api_key=KEY),
        )

    def probing(self, folder: Path, url: str) -> Config:
        backend = BackendTable(kind="tinker", base_url=url, server="probe")
        return toy_config(folder, TERMS, learning_rate=0.01).model_copy(update={"backend": backend})

    @pytest.mark.parametrize(("kind", "found"), [(LocalTrainingClient, "sums"), (AveragingClient, "averages")])
    def test_the_curve_is_the_same_however_the_server_reduces(
        self, tmp_path: Path, server: ProtocolServer, kind: Any, found: str
    ) -> None:
        here = train(toy_config(tmp_path, TERMS, learning_rate=0.01), tmp_path / "here")
        heard: list[str] = []
        progress = SimpleNamespace(**vars(killing(0)) | {"say": heard.append})
        with self.serving(tmp_path, kind) as other:
            there = train(self.probing(tmp_path, other.url), tmp_path / "there", progress=progress)
        assert f"the server {found}" in heard
        for one, two in zip(curve(here), curve(there), strict=True):
            assert one == pytest.approx(two, rel=1e-4, abs=1e-5)

    def test_a_server_that_cannot_be_told_is_an_error(self, tmp_path: Path, server: ProtocolServer) -> None:
        with self.serving(tmp_path, Wordless) as other:
            backend = connect(self.probing(tmp_path, other.url))
            with pytest.raises(RunError, match="reported nothing.*set backend"):
                _ = backend.server
            backend.close("errored")

    def test_only_training_probes(self, tmp_path: Path, server: ProtocolServer) -> None:
        backend = connect(self.probing(tmp_path, server.url))
        backend.sample([[1, 2]], 1, {"max_tokens": 1})
        assert {one.operation for one in server.executed}.isdisjoint({"forward_backward", "optim_step", "save_weights"})
        assert backend.server == "sums"
        done = len(server.executed)
        assert "optim_step" in {one.operation for one in server.executed}
        assert backend.server == "sums"
        assert len(server.executed) == done
        backend.close("success")


class TestLocal:
    def test_is_made_as_the_config_says_and_loads_a_checkpoint(self, tmp_path: Path) -> None:
        config = toy_config(tmp_path)
        backend = connect(config)
        assert isinstance(backend, Local)
        assert backend.server == "sums"
        assert str(backend.device) == "cpu"
        assert backend.limit == 2048
        assert backend.gradients == "parameters"
        datum = Datum(ModelInput.from_ints([1, 2]), {"target_tokens": [2, 3]})
        assert backend.batch((datum,)) == [datum]
        backend.client.forward_backward([datum], "cross_entropy").result()
        backend.client.optim_step(backend.adam({"learning_rate": 0.1})).result()
        path = backend.save(tmp_path / "saved", "step")
        again = connect(config, path)
        for one, other in zip(backend.client.parameters().values(), again.client.parameters().values(), strict=True):
            assert bool((one == other).all())
        teacher = backend.another(ClientTable(kind="client", model="tiny", seed=3))
        assert teacher is not backend.client
        for one in (backend, again):
            one.close("success")
        with pytest.raises(RuntimeError, match="closed"):
            teacher.forward([datum], "cross_entropy")

    def test_bars_of_transformers_stay_out_of_what_is_printed(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        import transformers

        folder = model_folder(tmp_path / "model")
        capfd.readouterr()
        made = toy_config(tmp_path)
        config = made.model_copy(update={"model": made.model.model_copy(update={"name": str(folder)})})
        assert transformers.logging.is_progress_bar_enabled()
        backend = connect(config)
        teacher = backend.another(ClientTable(kind="client", model=str(folder)))
        backend.close("success")
        assert teacher is not backend.client
        assert capfd.readouterr() == ("", "")
        assert transformers.logging.is_progress_bar_enabled()

    def test_a_teacher_with_other_tokens_is_an_error(self, tmp_path: Path) -> None:
        backend = connect(toy_config(tmp_path))
        table = ClientTable(kind="client", model=str(model_folder(tmp_path / "model")))
        with pytest.raises(RunError, match="has another vocabulary, of 259 tokens rather than 257") as raised:
            backend.another(table)
        backend.close("errored")
        assert raised.value.status == 2

    def test_a_checkpoint_of_another_model_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(Exception, match="does not exist"):
            connect(toy_config(tmp_path), str(tmp_path / "nowhere"))


class TestTinker:
    def test_without_a_key_it_says_where_one_is_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("TINKER_API_KEY", raising=False)
        with pytest.raises(RunError, match="TINKER_API_KEY is not set") as raised:
            connect(remote(toy_config(tmp_path), "http://127.0.0.1:1"))
        assert raised.value.status == 2

    def test_without_the_sdk_it_says_what_to_install(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "tinker", None)
        with pytest.raises(MissingLibraryError, match='pip install "penalties\\[tinker\\]"'):
            connect(remote(toy_config(tmp_path), "http://127.0.0.1:1"))

    @pytest.mark.parametrize("given", ["config", "environment"])
    def test_an_address_without_a_server_is_an_error_at_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
    ) -> None:
        monkeypatch.setenv("TINKER_API_KEY", KEY)
        monkeypatch.setenv("TINKER_BASE_URL", "http://127.0.0.1:1")
        with pytest.raises(RunError, match="no server answers at http://127.0.0.1:1") as raised:
            connect(remote(toy_config(tmp_path), "http://127.0.0.1:1" if given == "config" else None))
        assert raised.value.status == 2

    def test_a_newline_after_a_key_is_ignored(
        self, tmp_path: Path, server: ProtocolServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TINKER_API_KEY", f"{KEY}\n")
        connect(remote(toy_config(tmp_path), server.url)).close("success")

    def test_a_wrong_key_is_not_repeated(
        self, tmp_path: Path, server: ProtocolServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TINKER_API_KEY", "tml-wrong-secret")
        with pytest.raises(RunError, match=f"could not get a model from {server.url}") as raised:
            connect(remote(toy_config(tmp_path), server.url))
        assert "wrong-secret" not in str(raised.value)

    def test_data_and_options_are_in_the_types_of_the_sdk(self, tmp_path: Path, server: ProtocolServer) -> None:
        from tinker import types

        backend = connect(remote(toy_config(tmp_path), server.url))
        assert isinstance(backend, Tinker)
        given = {"target_tokens": [2, 3], "weights": [0.0, 1.0]}
        (datum,) = backend.batch([Datum(ModelInput.from_ints([1, 2]), given)])
        assert isinstance(datum, types.Datum)
        assert datum.model_input.to_ints() == [1, 2]
        assert datum.loss_fn_inputs["target_tokens"].dtype == "int64"
        np.testing.assert_array_equal(datum.loss_fn_inputs["weights"].to_numpy(), [0.0, 1.0])
        assert isinstance(backend.adam({"learning_rate": 0.1}), types.AdamParams)
        assert backend.tokenizer.encode("a") == [97]
        teacher = backend.another(ClientTable(kind="client", model="tiny"))
        assert teacher.model_id != backend.client.model_id
        server.fail("create_model", 400)
        with pytest.raises(RunError, match="could not get a model"):
            backend.another(ClientTable(kind="client", model="tiny"))
        backend.close("success")


class Service:
    """A stand-in for an SDK, older or broken."""

    def __init__(self, **_: Any) -> None:
        self.loaded: list[str] = []

    def create_lora_training_client(self, model: str, rank: int, seed: int) -> Any:
        def load(path: str) -> Any:
            self.loaded.append(path)
            return SimpleNamespace(result=lambda: None)

        return SimpleNamespace(load_state_with_optimizer=load, get_tokenizer=lambda: f"tokenizer of {model}")


class TestOtherSdks:
    def config(self, folder: Path, monkeypatch: pytest.MonkeyPatch, service: Any, model: str = "tiny") -> Config:
        monkeypatch.setenv("TINKER_API_KEY", KEY)
        monkeypatch.setitem(sys.modules, "tinker", SimpleNamespace(ServiceClient=service))
        # Nobody is there; and behind a proxy nobody knocks.
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        config = toy_config(folder)
        return remote(config.model_copy(update={"model": config.model.model_copy(update={"name": model})}), "http://x")

    def test_without_an_address_it_is_the_hosted_service(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refusing(**given: Any) -> Any:
            assert given["base_url"] is None
            raise ConnectionError("not today")

        config = remote(self.config(tmp_path, monkeypatch, refusing), None)
        monkeypatch.delenv("TINKER_BASE_URL", raising=False)
        with pytest.raises(RunError, match="could not get a model from the hosted service: .*not today"):
            connect(config)

    def test_an_older_one_loads_a_checkpoint_in_its_own_way(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        backend = connect(self.config(tmp_path, monkeypatch, Service), "tinker://checkpoint")
        assert isinstance(backend, Tinker)
        assert backend._service.loaded == ["tinker://checkpoint"]
        assert backend.device == "cpu"
        assert backend.limit is None
        assert backend.gradients is True
        backend.close("success")

    def test_the_tokenizer_is_the_models(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        backend = connect(self.config(tmp_path, monkeypatch, Service, "Qwen/Qwen3-8B"))
        assert backend.tokenizer == "tokenizer of Qwen/Qwen3-8B"

    def test_a_server_that_does_not_hear_the_end_is_a_warning(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Deaf(Service):
            def close(self, status: str) -> Any:
                raise ConnectionError(f"with {KEY}")

        backend = connect(self.config(tmp_path, monkeypatch, Deaf))
        with pytest.warns(UserWarning, match="could not close the session.*ConnectionError: with <TINKER_API_KEY>"):
            backend.close("success")

    def test_a_probe_that_fails_repeats_no_key(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def failing(*_: Any, **__: Any) -> Any:
            raise ConnectionError(f"with {KEY}")

        methods = ("forward", "forward_backward", "optim_step", "save_state", "load_state_with_optimizer")

        class Failing(Service):
            def create_lora_training_client(self, model: str, rank: int, seed: int) -> Any:
                return SimpleNamespace(**dict.fromkeys(methods, failing))

        config = self.config(tmp_path, monkeypatch, Failing)
        probing = config.model_copy(update={"backend": config.backend.model_copy(update={"server": "probe"})})
        with pytest.raises(RunError, match=r"could not probe http://x: .*with <TINKER_API_KEY>") as raised:
            _ = connect(probing).server
        assert KEY not in str(raised.value)

    def test_an_interruption_stays_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        class Interrupting(Service):
            def __init__(self, **_: Any) -> None:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            connect(self.config(tmp_path, monkeypatch, Interrupting))
