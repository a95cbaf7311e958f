"""Conversations that end with a user turn or with tool results: counted, shown, and dropped or trimmed if the recipe says so (S1)."""

import itertools
from typing import Any

import pytest

from penstock.errors import TemplateError
from penstock.templates.samples import runs

from .conversations import Q2, A, Q, assistant, chat, user

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
RESULT = {"role": "tool", "content": "42"}
ENDS = {
    "answer": [Q, A],
    "user": [Q, A, Q2],
    "tool": [Q, A, RESULT, RESULT],
    "tool, user": [Q, A, RESULT, Q2],
    "user, tool": [Q, A, Q2, RESULT],
    "no answer": [Q],
}


def encode(policy: str | None = None, **options: Any) -> Any:
    given = {} if policy is None else {"on_unanswered": policy}
    template = chat(CHATML, **given, **options)
    return template, template.encode([{"messages": messages} for messages in ENDS.values()])


def texts(template: Any, samples: Any) -> list[str]:
    ends = samples.offsets.tolist()
    return [
        template.decode(samples.input_ids[first:last]) for first, last in itertools.pairwise(ends)
    ]


def test_conversations_without_a_last_answer_are_kept_and_counted_by_what_they_end_with() -> None:
    """S1: they were kept without a word."""
    _, samples = encode()
    assert samples.dropped == {5: "nothing_to_train"}
    assert samples.notes == {
        "unanswered: user turn": {1: 1, 3: 2},
        "unanswered: tool result": {2: 2, 4: 2},
    }


def test_drop_leaves_them_out_under_a_reason_of_their_own() -> None:
    _, samples = encode("drop")
    unanswered = dict.fromkeys((1, 2, 3, 4), "unanswered")
    assert samples.dropped == {**unanswered, 5: "nothing_to_train"}
    assert not samples.notes


def test_trim_removes_what_follows_the_last_answer_and_counts_it() -> None:
    template, samples = encode("trim")
    whole = texts(template, samples)
    assert samples.dropped == {5: "nothing_to_train"}
    assert whole[:5] == [whole[0]] * 5
    assert samples.notes == {
        "trimmed: user turn": {1: 1, 3: 2},
        "trimmed: tool result": {2: 2, 4: 2},
    }
    assert [template.decode(samples.input_ids[a:b]) for a, b in runs(samples.loss_mask)] == [
        A["content"] + "<|im_end|>"
    ] * 5


def test_trim_tools_does_what_skyrl_does() -> None:
    """SkyRL's tokenize_chat_example: pop trailing tool messages; drop the row unless it then ends with an assistant message."""
    template, samples = encode("trim_tools")
    whole = texts(template, samples)
    assert samples.dropped == {
        1: "unanswered",
        3: "unanswered",
        4: "unanswered",
        5: "nothing_to_train",
    }
    assert whole[2] == whole[0] and samples.notes == {"trimmed: tool result": {2: 2}}


def test_a_trained_last_turn_is_an_answer_whatever_its_role() -> None:
    _, samples = encode(train_on=["assistant", "user", "tool"])
    assert not samples.notes and not samples.dropped
    talk = [Q, A, {**Q2, "train": True}]
    assert not chat(CHATML).encode([{"messages": talk}]).notes


def test_the_policy_is_part_of_the_key_and_is_checked() -> None:
    keys = [
        str(chat(CHATML, on_unanswered=policy).identity())
        for policy in ("keep", "drop", "trim", "trim_tools")
    ]
    assert len(set(keys)) == 4
    with pytest.raises(TemplateError, match="on_unanswered"):
        chat(CHATML, on_unanswered="cut")


def test_with_fan_out_each_sample_ends_with_its_answer() -> None:
    template = chat(CHATML)
    talk = [Q, A, Q2, assistant("Two."), user("More?")]
    record = {"messages": talk, template.turn_key: 0}
    assert template.num_turns({"messages": talk}) == 2
    assert not template.encode([record]).notes
