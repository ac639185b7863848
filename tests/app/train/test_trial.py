"""A trial: what would fail in a run is known before it."""

from pathlib import Path
from typing import Any

import pytest

from penalties.app.train.trial import is_here, tried

from ..configs import config
from ..data.tokenizers import model_folder

OWN = '[[term]]\nfn = "tests.app.terms:{}"\nweight = 0.1\n'


def test_it_has_the_loss_and_every_term_also_one_that_rests(tmp_path: Path) -> None:
    found = tried(config(tmp_path, OWN.format("counting") + "every = 5\n" + OWN.format("huge")))
    assert (found.problems, found.notes) == ([], [])
    assert found.loss is not None
    assert set(found.loss["regularizers"]) == {"counting", "huge"}


def test_every_term_that_fails_is_a_problem_and_one_that_may_is_a_note(tmp_path: Path) -> None:
    fails = "options = { fail = true }\n"
    text = OWN.format("cranky") + fails + OWN.format("cranky") + fails + 'name = "other"\n'
    found = tried(config(tmp_path, text + OWN.format("cranky") + fails + 'name = "may"\non_error = "skip"\n'))
    assert [one.where for one in found.problems] == ["term.cranky", "term.other"]
    assert [one.where for one in found.notes] == ["term.may"]
    for one in (*found.problems, *found.notes):
        assert one.message == "fails on the first batch: raised RuntimeError: as the test wants it"


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        (OWN.format("not_finite"), "term.not_finite", "the value is nan"),
        ('[train]\nloss = "tests.app.terms:failing_loss"\n', "train.loss", "as the test wants it"),
        (OWN.format("steep"), "the first batch", "the gradient of the loss is"),
    ],
)
def test_other_failures_are_problems(tmp_path: Path, text: str, where: str, says: str) -> None:
    (problem,) = tried(config(tmp_path, text)).problems
    assert problem.where == where
    assert says in problem.message


BEST = '[train]\nbest_by = "{}"\n[data]\npath = "lines.jsonl"\neval_path = "lines.jsonl"\n[samples]\n'


def test_a_best_by_that_no_evaluation_has_is_one(tmp_path: Path) -> None:
    counting = OWN.format("counting")
    for known in ("loss", "counting", "counting/seen", "base_loss"):
        assert tried(config(tmp_path, BEST.format(known) + counting)).problems == []
    (problem,) = tried(config(tmp_path, BEST.format("countin") + counting)).problems
    assert problem.where == "train.best_by"
    assert problem.message.startswith('found "countin", which no evaluation has; did you mean "counting"?')


def test_a_best_by_over_samples_is_known_only_in_a_run(tmp_path: Path) -> None:
    text = BEST.format("exact_match") + 'metrics = ["exact_match"]\n'
    assert tried(config(tmp_path, text)).problems == []


def test_a_line_that_the_model_cannot_read_is_one(tmp_path: Path) -> None:
    made = config(tmp_path, data=[{"prompt": "a", "completion": "b" * 3000}])
    (problem,) = tried(made).problems
    assert problem.where == "lines.jsonl: line 1"
    assert "the model reads at most 2048" in problem.message


def test_a_teacher_with_other_tokens_is_one(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    text = (
        f'[references]\nteacher = {{ kind = "client", model = "{folder}" }}\n'
        '[[term]]\nfn = "kl_divergence"\ninputs = { p = "logits", q = "teacher.logits" }\noptions = { logits = true }\n'
    )
    (problem,) = tried(config(tmp_path, text)).problems
    assert "has another vocabulary, of 259 tokens rather than 257" in problem.message
    assert "use a teacher with the same tokenizer" in problem.message


def test_a_cluster_that_does_not_answer_is_found_before_the_model_is_loaded(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    text = OWN.format("counting") + 'runs = "ray"\n[executor]\nray_address = "127.0.0.1:1"\n'
    made = config(tmp_path, text)
    gone = made.model.model_copy(update={"name": str(tmp_path / "gone")})
    (problem,) = tried(made.model_copy(update={"model": gone})).problems
    assert "no server answers at 127.0.0.1:1" in problem.message


def test_a_model_is_here_if_nothing_is_to_be_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there: dict[str, Any] = {}
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda model, name: there.get(name))
    assert is_here("tiny")
    assert is_here(str(tmp_path))
    assert not is_here("org/model")
    there["config.json"] = "/cache/config.json"
    assert not is_here("org/model")
    there["model.safetensors"] = "/cache/model.safetensors"
    assert is_here("org/model")
