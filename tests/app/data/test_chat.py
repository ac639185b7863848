"""Conversations: what the chat template makes of them, and what of it is learned."""

from pathlib import Path
from typing import Any

import pytest

from penalties.app.config import DataError
from penalties.app.data import Stream, learned_ends, prompt_tokens
from penalties.app.data.chat import parts_of
from penalties.app.data.examples import Bad, Chat
from penalties.training.local.tiny import ByteTokenizer

from ..configs import PAIRS, config
from .tokenizers import CHATML, HIDING, INSTRUCT, MARKED, STRICT, THINKING, tokenizer

TALK = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": " hello "},
    {"role": "user", "content": "again"},
    {"role": "assistant", "content": "yes"},
]
DPO = '[references]\ninitial = { kind = "initial" }\n[train]\nloss = "dpo"\nbatch_size = 1\n'


def learned(template: str, messages: list[Any] = TALK, first: int = 0) -> list[str]:
    """The parts that are learned; together the parts are the whole conversation."""
    fast = tokenizer(template)
    parts = [
        (one if isinstance(one, str) else fast.decode(one), counts)
        for one, counts in parts_of(fast, Chat(tuple(messages), first))
    ]
    assert "".join(text for text, _ in parts) == fast.apply_chat_template(messages, tokenize=False)
    return [text for text, counts in parts if counts]


class TestTemplates:
    @pytest.mark.parametrize(
        ("template", "expected"),
        [
            (CHATML, ["hello<|im_end|>", "yes<|im_end|>"]),
            (THINKING, ["hello<|im_end|>", "<think>\n</think>\nyes<|im_end|>"]),
            (INSTRUCT, ["  hello  <|im_end|>", " yes <|im_end|>"]),
            (MARKED, [" hello <|im_end|>", "yes<|im_end|>"]),
        ],
    )
    def test_turns_of_the_assistant_are_learned_with_what_ends_them(self, template: str, expected: list[str]) -> None:
        assert learned(template) == expected

    def test_a_turn_begins_where_the_model_would_begin(self) -> None:
        fast = tokenizer()
        (start, counts), *_ = parts_of(fast, Chat(tuple(TALK)))
        assert (start, counts) == (
            fast.apply_chat_template(TALK[:1], tokenize=False, add_generation_prompt=True),
            False,
        )

    @pytest.mark.parametrize("template", [CHATML, INSTRUCT, MARKED])
    def test_a_prompt_has_the_tokens_that_come_before_an_answer(self, template: str, tmp_path: Path) -> None:
        fast = tokenizer(template)
        made = config(tmp_path, "[train]\nbatch_size = 1", data=[{"messages": TALK[:2]}])
        (datum,) = Stream(made, fast).batch(0)
        found = prompt_tokens(fast, tuple(TALK[:1]))
        assert datum.model_input.to_ints()[: len(found)] == found
        assert fast.decode(found) == fast.apply_chat_template(TALK[:1], tokenize=False, add_generation_prompt=True)

    def test_turns_of_a_prompt_are_not_learned(self) -> None:
        for template in (CHATML, MARKED):
            assert learned(template, first=2) == ["yes<|im_end|>"]

    def test_a_conversation_may_begin_with_the_assistant(self) -> None:
        assert learned(CHATML, TALK[1:2])[0].endswith("hello<|im_end|>")

    def test_letters_for_private_use_are_letters(self) -> None:
        talk = [TALK[0], {"role": "assistant", "content": "\ue000\ue001"}]
        assert learned(CHATML, talk) == ["\ue000\ue001<|im_end|>"]

    def test_a_template_without_special_tokens_learns_the_end_of_the_line(self) -> None:
        parts = parts_of(ByteTokenizer(), Chat(tuple(TALK)))
        assert [text for text, counts in parts if counts] == [" hello \n", "yes\n"]


class TestEnds:
    @pytest.mark.parametrize(
        ("template", "expected"),
        [
            (CHATML, ["</s>", "<|im_end|>"]),
            (THINKING, ["</s>", "<|im_end|>"]),
            (MARKED, ["</s>", "<|im_end|>"]),
            (MARKED.replace("{% endgeneration %}", "\n{% endgeneration %}"), ["</s>", "<|im_end|>"]),
            (INSTRUCT, ["</s>"]),
            (CHATML.replace("<|im_end|>", ""), ["</s>"]),
            (HIDING, ["</s>"]),
            (None, ["</s>"]),
        ],
    )
    def test_are_those_of_texts_and_of_turns(self, template: str | None, expected: list[str]) -> None:
        fast = tokenizer(template, "</s>")
        assert fast.convert_ids_to_tokens(learned_ends(fast, chat=True)) == expected
        assert fast.convert_ids_to_tokens(learned_ends(fast, chat=False)) == ["</s>"]

    def test_a_tokenizer_may_have_none(self) -> None:
        fast = tokenizer("{% for message in messages %}{{ message.content }}\n{% endfor %}")
        fast.eos_token = None
        assert learned_ends(fast, chat=True) == []

    def test_the_built_in_model_has_one(self) -> None:
        assert learned_ends(ByteTokenizer(), chat=True) == [256]


class TestErrors:
    def test_no_template(self) -> None:
        with pytest.raises(
            Bad, match="has messages, but the tokenizer has no chat template; use prompt and completion"
        ):
            parts_of(tokenizer(None), Chat(tuple(TALK)))

    def test_a_template_that_refuses_a_conversation(self) -> None:
        with pytest.raises(Bad, match="do not fit the chat template: TemplateError: the user begins"):
            parts_of(tokenizer(STRICT), Chat(tuple(TALK[1:])))

    def test_a_template_that_hides_what_is_said(self) -> None:
        with pytest.raises(Bad, match="message 2 cannot be found .* mark the assistant's turns"):
            parts_of(tokenizer(HIDING), Chat(tuple(TALK)))


def stream(folder: Path, data: list[Any], text: str = "", made: Any = None) -> Stream:
    return Stream(config(folder, text or "[train]\nbatch_size = 1\n", data=data), made or tokenizer())


def texts(fast: Any, datum: Any) -> tuple[str, str]:
    """The whole text of a datum, and what of it is learned."""
    targets = datum.loss_fn_inputs["target_tokens"].to_numpy()
    counts = datum.loss_fn_inputs["weights"].to_numpy() > 0
    return fast.decode([*datum.model_input.to_ints(), targets[-1]]), fast.decode(targets[counts])


class TestLines:
    def test_messages_are_encoded_with_the_tokens_of_their_template(self, tmp_path: Path) -> None:
        fast = tokenizer()
        (datum,) = stream(tmp_path, [{"messages": TALK}], made=fast).batch(0)
        whole = fast.apply_chat_template(TALK, tokenize=False)
        assert texts(fast, datum) == (whole, "hello<|im_end|>yes<|im_end|>")
        assert datum.model_input.to_ints() == fast.encode(whole, add_special_tokens=False)[:-1]

    def test_the_built_in_model_ends_a_conversation_itself(self, tmp_path: Path) -> None:
        (datum,) = stream(tmp_path, [{"messages": TALK[:2]}], made=ByteTokenizer()).batch(0)
        assert texts(ByteTokenizer(), datum) == ("user: hi\nassistant:  hello \n<end>", " hello \n<end>")

    def test_a_prompt_and_a_completion_may_be_messages(self, tmp_path: Path) -> None:
        fast = tokenizer()
        (datum,) = stream(tmp_path, [{"prompt": TALK[:3], "completion": TALK[3:]}], made=fast).batch(0)
        assert texts(fast, datum)[1] == "yes<|im_end|>"

    @pytest.mark.parametrize("prompt", [TALK[:1], "hi"])
    def test_so_may_a_pair(self, tmp_path: Path, prompt: Any) -> None:
        fast = tokenizer()
        line = {"prompt": prompt, "chosen": TALK[1:2], "rejected": TALK[3:]}
        found = [texts(fast, datum) for datum in stream(tmp_path, [line], DPO, fast).batch(0)]
        assert [answer for _, answer in found] == ["hello<|im_end|>", "yes<|im_end|>"]
        assert all(whole.startswith("<|im_start|>user\nhi<|im_end|>") for whole, _ in found)

    def test_a_pair_that_repeats_its_prompt_has_it_once(self, tmp_path: Path) -> None:
        fast = tokenizer()
        line = {"prompt": "hi", "chosen": TALK[:2], "rejected": [TALK[0], TALK[3]]}
        found = [texts(fast, datum)[0] for datum in stream(tmp_path, [line, *PAIRS[:0]], DPO, fast).batch(0)]
        assert [whole.count("hi<|im_end|>") for whole in found] == [1, 1]

    def test_only_what_follows_a_repeated_prompt_is_learned(self, tmp_path: Path) -> None:
        fast = tokenizer()
        line = {"prompt": "again\n", "chosen": TALK, "rejected": [*TALK[:3], TALK[1]]}
        found = [texts(fast, datum)[1] for datum in stream(tmp_path, [line], DPO, fast).batch(0)]
        assert found == ["yes<|im_end|>", "hello<|im_end|>"]

    def test_a_prompt_that_is_not_in_the_conversation_is_a_bad_line(self, tmp_path: Path) -> None:
        # What the assistant says is no prompt.
        for prompt in ("Be brief.", "yes"):
            with pytest.raises(DataError, match="prompt is not among the messages of chosen, .* expected it as"):
                stream(tmp_path, [{"prompt": prompt, "chosen": TALK, "rejected": TALK}], DPO)

    @pytest.mark.parametrize(
        ("line", "says"),
        [
            ({"messages": []}, "messages is empty; expected a list of messages"),
            ({"messages": "hi"}, "messages is a string; expected a list of messages"),
            ({"messages": ["hi"]}, "message 1 of messages is a string; expected an object with role and content"),
            ({"messages": [{"role": "user"}]}, 'message 1 of messages has no "content"; found role'),
            ({"messages": [{"role": "user", "content": 5}]}, "content of message 1 of messages is a number"),
            ({"messages": [{"role": "", "content": "a"}]}, "role of message 1 of messages is empty"),
            ({"messages": TALK[:1]}, 'messages has no message of role "assistant"'),
            (
                {"messages": [TALK[0], {"role": "assistant", "content": "", "tool_calls": [{}]}]},
                "message 2 of messages has tool_calls, which cannot be learned",
            ),
        ],
    )
    def test_bad_ones_say_what_is_wrong(self, tmp_path: Path, line: Any, says: str) -> None:
        with pytest.raises(DataError) as caught:
            stream(tmp_path, [line])
        assert says in caught.value.problems[0].message

    @pytest.mark.parametrize(
        ("template", "answer"),
        [
            (MARKED.replace("== 'assistant'", "== 'assistant' and message.content != 'no'"), "no"),
            (CHATML.replace("<|im_end|>\n", ""), ""),
        ],
    )
    def test_a_conversation_without_a_learned_token_is_a_bad_line(
        self, tmp_path: Path, template: str, answer: str
    ) -> None:
        line = {"messages": [TALK[0], {"role": "assistant", "content": answer}]}
        with pytest.raises(DataError, match="has nothing to learn: the chat template writes no text"):
            stream(tmp_path, [line], made=tokenizer(template))
        whole = '[data]\npath = "lines.jsonl"\nmask_prompt = false\n[train]\nbatch_size = 1\n'
        (datum,) = stream(tmp_path, [line], whole, tokenizer(template)).batch(0)
        assert datum.loss_fn_inputs["weights"].to_numpy().sum() == pytest.approx(1.0)

    def test_a_cut_that_leaves_no_answer_is_a_bad_line(self, tmp_path: Path) -> None:
        text = '[data]\npath = "lines.jsonl"\nmax_length = 10\n'
        with pytest.raises(DataError, match="its prompt has 21 tokens, but data.max_length is 10"):
            stream(tmp_path, [{"messages": TALK}], text)
