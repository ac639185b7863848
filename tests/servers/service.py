"""The state behind a protocol server: sessions, models with their requests in order, answers, checkpoints, samplers."""

import hashlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from penalties.errors import PenaltiesError
from penalties.training.types import AdamParams, Datum, ModelInput, SamplingParams

from .wire import PROTOBUF, Pass, output_body, pass_of, sample_body

ANSWER_S = 60.0
"""How long a client may take for one operation."""


class Refused(Exception):
    """A request that is answered by a status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Execution(NamedTuple):
    """One thing that was really done."""

    operation: str
    model_id: str
    seq_id: int


class Body(NamedTuple):
    """What is sent back."""

    kind: str
    content: bytes


def as_json(value: Any) -> Body:
    return Body("application/json", json.dumps(value).encode())


@dataclass(frozen=True)
class Settings:
    """What a server is like."""

    api_key: str = "tml-test"
    config: Mapping[str, Any] = field(default_factory=dict)
    """The flags that the SDK asks for first, `ClientConfigResponse`: the size of chunks, the transport, compression."""
    poll_s: float = 2.0
    """How long a question for an answer is held before "try again"; the service's is about 30 s."""
    gap_s: float = 1.0
    """How long a request waits for the ones before it."""
    inline_bytes: int | None = None
    """From which size an answer is announced by its size first."""


@dataclass
class _Waiting:
    """A request whose turn has not come."""

    since: float
    start: Callable[[], None]
    answer: "Future[Body]"


class Model:
    """One model, whose requests are carried out in the order of their `seq_id`, each once however often it comes."""

    def __init__(self, model_id: str, base: str, rank: int, make: Callable[[], Any], log: list[Execution]) -> None:
        self.model_id, self.base, self.rank = model_id, base, rank
        self.slow: dict[str, float] = {}
        self._log = log
        self._lock = threading.Lock()
        self._next = 1
        self._waiting: dict[int, _Waiting] = {}
        self._seen: dict[int, tuple[str, Future[Body]]] = {}
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=model_id)
        self._client = self._worker.submit(make)

    @property
    def client(self) -> Any:
        return self._client.result(ANSWER_S)

    def created(self, then: Callable[[Any], Any] | None = None) -> "Future[Body]":
        """The answer to the request that created the model, and perhaps loaded something into it."""
        answer: Future[Body] = Future()

        def run() -> None:
            if then is not None:
                then(self.client)
            answer.set_result(as_json({"model_id": self.model_id, "type": "create_model" if then is None else None}))

        self._worker.submit(_guarded, run, answer)
        return answer

    def submit(self, seq_id: int, operation: str, digest: str, work: Callable[[Any], Body]) -> "Future[Body]":
        """Carry this out when its turn comes; a `seq_id` that is known gets the answer that it got before."""
        with self._lock:
            if seq_id in self._seen:
                first, answer = self._seen[seq_id]
                if first != digest:
                    raise Refused(400, f"{self.model_id}: seq_id {seq_id} came again with another content")
                return answer
            if seq_id < self._next:
                raise Refused(400, f"{self.model_id}: seq_id {seq_id} is below {self._next}")
            answer = Future()
            self._seen[seq_id] = digest, answer

            def run() -> None:
                time.sleep(self.slow.get(operation, 0.0))
                self._log.append(Execution(operation, self.model_id, seq_id))
                answer.set_result(work(self.client))

            self._waiting[seq_id] = _Waiting(
                time.monotonic(), lambda: self._worker.submit(_guarded, run, answer) and None, answer
            )
            while self._next in self._waiting:
                self._waiting.pop(self._next).start()
                self._next += 1
            return answer

    def give_up(self, limit: float) -> None:
        """Fail the requests that have waited too long for one that never came."""
        with self._lock:
            for seq_id, waiting in list(self._waiting.items()):
                if time.monotonic() - waiting.since > limit:
                    del self._waiting[seq_id]
                    waiting.answer.set_exception(
                        PenaltiesError(f"seq_id {seq_id} waited for {self._next}, which never came")
                    )

    def close(self) -> None:
        self._worker.shutdown(wait=False, cancel_futures=True)


def _guarded(run: Callable[[], None], answer: "Future[Body]") -> None:
    try:
        run()
    except Exception as error:
        answer.set_exception(error)


class Service:
    """Everything that a server remembers."""

    def __init__(self, make_client: Callable[[str, int, int], Any], settings: Settings, log: list[Execution]) -> None:
        self.settings = settings
        self.models: dict[str, Model] = {}
        self.beats = 0
        self._make_client = make_client
        self._log = log
        self._lock = threading.RLock()
        self._sessions: dict[str, bool] = {}
        self._answers: dict[str, Future[Body]] = {}
        self._checkpoints: dict[str, tuple[str, Model]] = {}
        self._samplers: dict[str, Any] = {}

    def close(self) -> None:
        for model in self.models.values():
            model.close()

    # Sessions.

    def create_session(self, _: Any) -> Body:
        session_id = uuid.uuid4().hex
        self._sessions[session_id] = True
        return as_json({"type": "create_session", "session_id": session_id})

    def session_heartbeat(self, asked: Any) -> Body:
        self._session(asked["session_id"])
        self.beats += 1
        return as_json({"type": "session_heartbeat"})

    def finish(self, session_id: str) -> Body:
        if session_id not in self._sessions:
            raise Refused(404, f"no session {session_id}")
        self._sessions[session_id] = False
        return as_json(None)

    def _session(self, session_id: str) -> str:
        if session_id not in self._sessions:
            raise Refused(404, f"no session {session_id}")
        if not self._sessions[session_id]:
            raise Refused(410, f"session {session_id} has finished")
        return session_id

    # Models.

    def create_model(self, asked: Any) -> Body:
        lora = asked["lora_config"]
        model_id = f"{self._session(asked['session_id'])}:train:{asked['model_seq_id']}"
        return self._create(model_id, asked["base_model"], lora["rank"], lora.get("seed") or 0)

    def _create(self, model_id: str, base: str, rank: int, seed: int, then: Callable[[Any], Any] | None = None) -> Body:
        with self._lock:
            if model_id not in self.models:
                model = Model(model_id, base, rank, lambda: self._make_client(base, rank, seed), self._log)
                self.models[model_id] = model
                self._answers[f"{model_id}:0"] = model.created(then)
        return self._promise(f"{model_id}:0", model_id)

    def _model(self, model_id: str) -> Model:
        if model_id not in self.models:
            raise Refused(404, f"no model {model_id}")
        self._session(model_id.split(":")[0])
        return self.models[model_id]

    def get_info(self, asked: Any) -> Body:
        model = self._model(asked["model_id"])
        known = {"model_id": model.model_id, "model_data": {"model_name": model.base}, "lora_rank": model.rank}
        return as_json({"type": "get_info", "is_lora": True, **known})

    # Training.

    def _submit(self, operation: str, asked: Any, digest: str, work: Callable[[Any], Body]) -> Body:
        model_id, seq_id = asked["model_id"], asked["seq_id"]
        with self._lock:
            answer = self._model(model_id).submit(seq_id, operation, digest, work)
            self._answers[f"{model_id}:{seq_id}"] = answer
        return self._promise(f"{model_id}:{seq_id}", model_id)

    def _promise(self, request_id: str, model_id: str) -> Body:
        return as_json({"request_id": request_id, "model_id": model_id})

    def run_pass(self, asked: Pass, digest: str) -> Body:
        def work(client: Any) -> Body:
            run = client.forward if asked.forward_only else client.forward_backward
            return Body(PROTOBUF, output_body(run(asked.data, asked.loss_fn, asked.config).result(ANSWER_S)))

        operation = "forward" if asked.forward_only else "forward_backward"
        return self._submit(operation, {"model_id": asked.model_id, "seq_id": asked.seq_id}, digest, work)

    def optim_step(self, asked: Any, digest: str) -> Body:
        params = AdamParams(**asked["adam_params"])
        return self._submit(
            "optim_step",
            asked,
            digest,
            lambda client: as_json({"metrics": client.optim_step(params).result(ANSWER_S).metrics}),
        )

    # Checkpoints.

    def save_weights(self, asked: Any, digest: str) -> Body:
        def work(client: Any) -> Body:
            return as_json({"path": self._save(client, asked, "weights", asked["path"]), "type": "save_weights"})

        return self._submit("save_weights", asked, digest, work)

    def _save(self, client: Any, asked: Any, kind: str, name: str) -> str:
        path = f"tinker://{asked['model_id']}/{kind}/{name}"
        saved = client.save_state(f"{asked['model_id'].replace(':', '-')}-{kind}-{name}").result(ANSWER_S).path
        self._checkpoints[path] = saved, self.models[asked["model_id"]]
        return path

    def _checkpoint(self, path: str) -> tuple[str, Model]:
        if path not in self._checkpoints:
            raise Refused(404, f"no checkpoint {path}")
        return self._checkpoints[path]

    def weights_info(self, asked: Any) -> Body:
        _, model = self._checkpoint(asked["tinker_path"])
        return as_json({"base_model": model.base, "is_lora": True, "lora_rank": model.rank})

    def load_weights(self, asked: Any, digest: str) -> Body:
        saved, model = self._checkpoint(asked["path"])

        def load(client: Any) -> None:
            (client.load_state_with_optimizer if asked["optimizer"] else client.load_state)(saved).result(ANSWER_S)

        def work(client: Any) -> Body:
            load(client)
            return as_json({"path": asked["path"], "model_id": asked["model_id"], "type": "load_weights"})

        if "model_id" in asked:
            return self._submit("load_weights", asked, digest, work)
        model_id = f"{self._session(asked['session_id'])}:train:{asked['model_seq_id']}"
        return self._create(model_id, model.base, model.rank, 0, load)

    # Sampling.

    def save_weights_for_sampler(self, asked: Any, digest: str) -> Body:
        def work(client: Any) -> Body:
            path = self._save(client, asked, "sampler_weights", asked.get("path") or f"unnamed-{asked['seq_id']}")
            given: dict[str, Any] = {"path": path, "type": "save_weights_for_sampler"}
            if "path" not in asked:
                given["sampling_session_id"] = self._sampler(path)
            return as_json(given)

        return self._submit("save_weights_for_sampler", asked, digest, work)

    def _sampler(self, path: str) -> str:
        """A client of its own, so that what is trained later does not reach it."""
        saved, model = self._checkpoint(path)
        client = self._make_client(model.base, model.rank, 0)
        client.load_state(saved).result(ANSWER_S)
        sampler_id = f"{model.model_id}:sample:{len(self._samplers)}"
        self._samplers[sampler_id] = client
        return sampler_id

    def create_sampling_session(self, asked: Any) -> Body:
        self._session(asked["session_id"])
        if "model_path" in asked:
            sampler_id = self._sampler(asked["model_path"])
        else:
            sampler_id = f"{asked['session_id']}:sample:{len(self._samplers)}"
            self._samplers[sampler_id] = self._make_client(asked["base_model"], 1, 0)
        return as_json({"type": "create_sampling_session", "sampling_session_id": sampler_id})

    def asample(self, asked: Any) -> Body:
        sampler_id = asked["sampling_session_id"]
        if sampler_id not in self._samplers:
            raise Refused(404, f"no sampler {sampler_id}")
        client, count = self._samplers[sampler_id], asked["num_samples"]
        request_id = f"{sampler_id}:{asked['seq_id']}"
        answer: Future[Body] = Future()
        with self._lock:
            seen = request_id in self._answers
            answer = self._answers.setdefault(request_id, answer)
        if not seen:
            _guarded(lambda: answer.set_result(Body(PROTOBUF, _sample(client, asked, count))), answer)
        return as_json({"request_id": request_id, "sample_sequence_ids": [f"{request_id}:{i}" for i in range(count)]})

    # Answers.

    def retrieve_future(self, asked: Any) -> tuple[int, Body]:
        """The answer, once it is there; until then 408, "try again", each time after a while."""
        request_id = asked["request_id"]
        if request_id not in self._answers:
            raise Refused(404, f"no request {request_id}")
        answer = self._answers[request_id]
        end = time.monotonic() + self.settings.poll_s
        while True:
            try:
                body = answer.result(0.1)
            except TimeoutError:
                for model in list(self.models.values()):
                    model.give_up(self.settings.gap_s)
                if time.monotonic() > end:
                    return 408, as_json({"type": "try_again", "request_id": request_id, "queue_state": "active"})
            except Exception as error:
                whose = "user" if isinstance(error, PenaltiesError) else "server"
                return 200, as_json({"error": f"{type(error).__name__}: {error}", "category": whose})
            else:
                limit = self.settings.inline_bytes
                if asked.get("allow_metadata_only") and limit is not None and len(body.content) > limit:
                    return 200, as_json({"status": "complete_metadata", "response_payload_size": len(body.content)})
                return 200, body


def _sample(client: Any, asked: Any, count: int) -> bytes:
    tokens = [token for chunk in asked["prompt"]["chunks"] for token in chunk["tokens"]]
    wanted = {name: value for name, value in asked["sampling_params"].items() if value is not None}
    drawn = client.sample(ModelInput.from_ints(tokens), count, SamplingParams(**wanted)).result(ANSWER_S)
    if not asked.get("prompt_logprobs"):
        return sample_body(drawn)
    datum = Datum(ModelInput.from_ints(tokens[:-1]), {"target_tokens": np.asarray(tokens[1:])})
    scored = client.forward([datum], "cross_entropy").result(ANSWER_S).loss_fn_outputs[0]["logprobs"]
    prompt = [float("nan"), *scored.to_numpy().tolist()]
    count = asked.get("topk_prompt_logprobs") or 0
    if not count:
        return sample_body(drawn, prompt)
    graph = client.forward_with_graph([datum], ["logits"], evaluate=True).result(ANSWER_S)
    best = graph.packed["logits"].float().log_softmax(-1).topk(count)
    return sample_body(drawn, prompt, (best.indices.numpy(), best.values.numpy()))


def digest_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def read_pass(body: bytes) -> Pass:
    try:
        return pass_of(body)
    except Exception as error:
        raise Refused(422, f"forward_backward: {error}") from error
