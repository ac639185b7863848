"""What a config may name: all of it described, and every example one that trains."""

import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from penalties.app.catalogue.entries import KINDS, entries, entry_of_path
from penalties.app.catalogue.examples import penalty_example
from penalties.app.config import Config
from penalties.app.config.objective import BY_RULE, INPUTS, LOCAL_BY_RULE, LOCAL_INPUTS
from penalties.app.config.options import SHIPPED, inputs_of, wrong_value
from penalties.app.data import Stream
from penalties.errors import OptionError
from penalties.functional.penalty import facts_of
from penalties.pipeline import Pipeline, Term
from penalties.pipeline.catalogue import BUILT_IN
from penalties.pipeline.wrappers import WRAPPERS
from penalties.training import LocalTrainingClient, adapters, forward_backward_custom, losses
from penalties.training.objective import objective_of

from .configs import CANDIDATES, LINES, PAIRS, SAMPLED, config

DATA = {"dpo": PAIRS, "importance_sampling": SAMPLED, "reverse_kl": CANDIDATES}

EXAMPLES = {(entry.kind, entry.name): entry.example for entry in entries() if entry.example}

REFERENCES = """
[references]
initial = { kind = "initial" }
perturbed = { kind = "perturbed" }
"""


@pytest.fixture(scope="module")
def client() -> Iterator[LocalTrainingClient]:
    with LocalTrainingClient("tiny", rank=2) as made:
        yield made


def test_everything_has_a_line_about_itself() -> None:
    found = list(entries())
    for entry in found:
        assert entry.kind in KINDS
        assert entry.name
        assert entry.summary.endswith((".", ":", ")"))
        assert "\n" not in entry.summary
        assert ">>>" not in entry.details
        for value in entry.values:
            assert value.name
            assert value.allowed
    assert len({(entry.kind, entry.name) for entry in found}) == len(found)


def test_every_penalty_adapter_and_table_is_there() -> None:
    by_kind = {kind: [entry.name for entry in entries() if entry.kind == kind] for kind in KINDS}
    assert by_kind["penalty"] == list(BUILT_IN)
    assert [name.partition(":")[2] for name in by_kind["batch"]] == list(adapters.__all__)
    assert by_kind["loss"] == [*losses.BY_NAME, "none"]
    assert by_kind["reference"] == ["initial", "client", "perturbed"]
    assert by_kind["schedule"][:3] == ["constant", "linear", "warmup"]
    assert by_kind["wrap"] == list(WRAPPERS)
    assert by_kind["sink"] == ["tensorboard", "mlflow", "wandb", "opentelemetry"]
    assert by_kind["table"] == list(Config.model_fields)


def test_inputs_are_those_that_terms_get() -> None:
    for name in (*INPUTS, *(name.replace("<layer>", "1") for name in LOCAL_INPUTS)):
        objective_of(None, [Term(lambda x: x, name="any", inputs=name)], {}, None, candidates=None, local=True)


def test_so_are_those_whose_names_depend_on_the_config() -> None:
    named = [name.replace("<reference>", "mine").replace("<layer>", "1") for name in (*BY_RULE, *LOCAL_BY_RULE)]
    for name in named:
        # The step is an argument of the function, by its name.
        term = Term(lambda mask, step: step, name="any") if name == "step" else Term(len, name="any", inputs=name)
        objective_of(None, [term], {"mine": True}, None, candidates=None, local=True, top_k=["mine"])


def test_tables_show_the_default_and_the_meaning_of_each_key() -> None:
    train = next(entry for entry in entries() if (entry.kind, entry.name) == ("table", "train"))
    steps = next(value for value in train.values if value.name == "steps")
    assert steps == ("steps", "a whole number of at least 1", "100", "The number of optimizer steps.")
    data = next(entry for entry in entries() if (entry.kind, entry.name) == ("table", "data"))
    assert data.values[0].default == ""


def test_a_function_of_ones_own_is_described_by_what_it_says() -> None:
    entry = entry_of_path("tests.app.config_terms:steady")
    assert entry.summary == "How large they are."
    assert entry.reads == ("logprobs",)
    assert entry.values[0][:3] == ("size", "", "1.0")
    assert entry_of_path("tests.app.config_terms:undocumented").summary == "It has no docstring."
    with pytest.raises(OptionError):
        entry_of_path("no.such:thing")


def test_a_class_is_described_as_what_a_module_makes_a_term_of() -> None:
    entry = entry_of_path("penalties.terms.judge:Judge")
    assert entry.reads == ("samples",)
    assert [(value.name, value.default) for value in entry.values][:2] == [("model", ""), ("tokenizer", "not set")]
    assert entry.example.startswith('# my_module.py has: term = Judge(…)\n[[term]]\nfn = "my_module:term"')
    assert entry_of_path("penalties.terms.knowledge:Rule").reads == ()


def test_an_option_that_a_function_needs_is_no_input() -> None:
    entry = entry_of_path("penalties.terms.logic:soft_rules")
    assert entry.reads == ("p",)
    assert ("rules", "") in [(value.name, value.default) for value in entry.values]


def test_inputs_that_may_be_left_out_are_marked() -> None:
    assert inputs_of(SHIPPED["kl_estimate"]) == ["logprobs", "reference", "mask (optional)"]
    assert inputs_of(SHIPPED["dpo"]) == ["data", "logprobs", "reference"]


def test_options_of_others_are_theirs() -> None:
    assert wrong_value(len, "anything", 5) is None
    assert wrong_value(SHIPPED["l1"], "anything", 5) is None
    assert wrong_value(SHIPPED["l1"], "reduction", "mean") is None


def check_example(folder: Path, client: LocalTrainingClient, name: str, text: str) -> None:
    """It trains; or it is a comment, on what cannot be in a config."""
    given = tomllib.loads(text)
    if not given:
        assert text.startswith("# ")
        return
    text += REFERENCES if "references" not in given else ""
    made = config(folder, text, ["train.batch_size=2"], data=DATA.get(name, LINES))
    stream = Stream(made, client.tokenizer)
    result = forward_backward_custom(
        client,
        stream.batch(0),
        made.base,
        regularizers=made.pipeline(),
        references=made.providers(lambda table: client),
        step=0,
    ).result()
    out = result.custom_loss
    assert out is not None
    out.check()
    assert len(out.terms) == len(given.get("term", ()))


@pytest.mark.parametrize(("kind", "name"), EXAMPLES, ids=map("-".join, EXAMPLES))
def test_every_example_trains(tmp_path: Path, client: LocalTrainingClient, kind: str, name: str) -> None:
    check_example(tmp_path, client, name, EXAMPLES[kind, name])


@pytest.mark.parametrize("name", [name for kind, name in EXAMPLES if kind in ("penalty", "batch")])
def test_the_example_of_a_penalty_is_a_pipeline_in_the_library_too(tmp_path: Path, name: str) -> None:
    text = next(EXAMPLES[kind, name] for kind in ("penalty", "batch") if (kind, name) in EXAMPLES)
    given = tomllib.loads(text)
    if given:
        assert Pipeline.from_config(given["term"]) == config(tmp_path, text + REFERENCES).pipeline()


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_example_of_a_penalty_is_what_it_declares(name: str) -> None:
    facts = facts_of(BUILT_IN[name])
    assert facts is not None
    assert EXAMPLES["penalty", name].endswith(facts.config)


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_example_of_a_penalty_that_declares_none_trains(
    tmp_path: Path, client: LocalTrainingClient, name: str
) -> None:
    facts = facts_of(BUILT_IN[name])
    assert facts is not None
    text = penalty_example(name, replace(facts, config=""))
    check_example(tmp_path, client, name, text)
    of_arrays = not facts.needs_gradient and not facts.labels and np.ndim(facts.example()[0]) > 0
    assert bool(tomllib.loads(text)) == of_arrays
