"""Does every way of writing a conversation down give the same conversation, and does the record stay as it was?"""

import copy
import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import TemplateError
from penstock.templates import Conversation, Reader
from penstock.templates.flags import MASK_FLAGS, MaskFlag, train_weight

TURNS = [
    ("system", "be brief"),
    ("user", "hi"),
    ("assistant", "hello"),
    ("user", "bye"),
    ("assistant", "ciao"),
]
MESSAGES = [{"role": role, "content": content} for role, content in TURNS]
CALL = {"name": "add", "arguments": {"a": 1, "b": [2, None]}}
WRAPPED = {"type": "function", "function": CALL}
TOOL = {"name": "add", "description": "adds", "parameters": {"type": "object", "properties": {}}}


def read(record: dict[str, Any], **options: Any) -> Conversation:
    """Read it, twice to see that the first time changed nothing."""
    before = json.dumps(record)
    reader = Reader(**options)
    conversation = reader(record)
    assert json.dumps(record) == before
    assert pickle.loads(pickle.dumps(reader))(copy.deepcopy(record)) == conversation
    return conversation


def refused(record: dict[str, Any], **options: Any) -> str:
    with pytest.raises(TemplateError) as caught:
        Reader(**options)(record, 7)
    assert caught.value.record == 7
    return str(caught.value)


@pytest.mark.parametrize(
    ("shape", "record", "options"),
    [
        ("messages", {"messages": MESSAGES}, {}),
        ("messages", {"messages": json.dumps(MESSAGES)}, {}),
        ("messages", {"messages": MESSAGES[1:], "system": "be brief"}, {}),
        ("messages", {"messages": MESSAGES[1:], "sys": "be brief"}, {"system_key": "sys"}),
        ("messages", {"messages": MESSAGES, "system_prompt": None, "tools": []}, {}),
        ("messages", {"messages": MESSAGES, "system_prompt": "another"}, {"system_key": None}),
        (
            "messages",
            {"log": [{"who": role, "says": said} for role, said in TURNS]},
            {"messages_key": "log", "role_key": "who", "content_key": "says"},
        ),
        (
            "messages",
            {"messages": [{"role": role.upper(), "content": said} for role, said in TURNS]},
            {},
        ),
        (
            "messages",
            {"messages": [{"role": role[0], "content": said} for role, said in TURNS]},
            {"role_map": {"s": "system", "user": ["u"], "a": "assistant"}},
        ),
        (
            "sharegpt",
            {
                "conversations": [
                    {"from": {"user": "human", "assistant": "gpt"}.get(role, role), "value": said}
                    for role, said in TURNS
                ]
            },
            {},
        ),
        ("sharegpt", {"conversation": MESSAGES}, {}),
        (
            "sharegpt",
            {
                "conversation": [
                    {"human": "hi", "assistant": "hello"},
                    {"human": "bye", "assistant": "ciao"},
                ],
                "system": "be brief",
            },
            {},
        ),
        (
            "sharegpt",
            {"dialog": [{"from": role, "value": said} for role, said in TURNS]},
            {"messages_key": "dialog"},
        ),
        (
            "alpaca",
            {
                "instruction": "bye",
                "input": "",
                "output": "ciao",
                "history": [["hi", "hello"]],
                "system": "be brief",
            },
            {},
        ),
        (
            "alpaca",
            {"q": "bye", "a": "ciao", "past": [["hi", "hello"]], "system": "be brief"},
            {"instruction_key": "q", "output_key": "a", "history_key": "past"},
        ),
        ("prompt_completion", {"prompt": MESSAGES[:-1], "completion": MESSAGES[-1:]}, {}),
        ("prompt_completion", {"prompt": MESSAGES[:-1], "completion": MESSAGES[-1]}, {}),
        ("prompt_completion", {"prompt": MESSAGES[:-1], "response": "ciao"}, {}),
    ],
)
def test_one_conversation_in_every_shape(
    shape: str, record: dict[str, Any], options: dict[str, Any]
) -> None:
    conversation = read(record, shape=shape, **options)
    assert conversation.messages == MESSAGES
    assert (conversation.tools, conversation.documents, conversation.kwargs) == (None, None, {})


def test_the_border_of_the_prompt_is_known_where_there_is_one() -> None:
    two_sided = {"prompt": MESSAGES[1:-1], "completion": "ciao", "system": "be brief"}
    assert (
        read(two_sided, shape="prompt_completion").prompt_length == 4
    )  # with the system message before it
    asked = read({"Question": "hi", "ANSWER": "hello", "level": 3}, shape="query_response")
    assert asked.messages == MESSAGES[1:3] and asked.prompt_length == 1
    alpaca = read({"instruction": "sort", "input": "3 1", "output": "1 3"}, shape="alpaca")
    assert (
        alpaca.messages[0] == {"role": "user", "content": "sort\n\n3 1"}
        and alpaca.prompt_length == 1
    )
    assert read({"messages": MESSAGES}).prompt_length is None


@pytest.mark.parametrize(
    "tools", [[WRAPPED], WRAPPED, [CALL], json.dumps([WRAPPED]), [json.dumps(WRAPPED)], (WRAPPED,)]
)
def test_tools_in_every_spelling(tools: Any) -> None:
    assert Reader()({"messages": MESSAGES, "tools": tools}).tools == [WRAPPED]
    assert Reader(tool_key="functions")({"messages": MESSAGES, "functions": tools}).tools == [
        WRAPPED
    ]


@pytest.mark.parametrize("tools", [None, "", [], {}, "[]", "null", float("nan")])
def test_no_tools_in_every_spelling(tools: Any) -> None:
    assert Reader()({"messages": MESSAGES, "tools": tools}).tools is None


CALLS = [
    {"role": "assistant", "content": "", "tool_calls": [WRAPPED]},
    {"role": "assistant", "content": "", "tool_calls": WRAPPED},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "assistant", "content": "", "tool_calls": json.dumps([CALL])},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{**CALL, "arguments": json.dumps(CALL["arguments"])}],
    },
    {
        "role": "assistant",
        "content": "",
        "function_call": {**CALL, "arguments": json.dumps(CALL["arguments"])},
    },
    {"role": "function_call", "content": json.dumps(CALL)},
    {"role": "tool_call", "content": json.dumps([CALL])},
    {"role": "assistant", "content": [{"type": "tool_call", "value": json.dumps(CALL)}]},
]


@pytest.mark.parametrize("message", CALLS)
def test_calls_in_every_spelling(message: dict[str, Any]) -> None:
    expected = {"role": "assistant", "content": "", "tool_calls": [WRAPPED]}
    assert read({"messages": [message]}).messages == [expected]
    text = read({"messages": [message]}, tool_arguments="text").messages[0]["tool_calls"][0][
        "function"
    ]["arguments"]
    assert json.loads(text) == CALL["arguments"]


def test_arguments_are_parsed_or_left_as_they_are() -> None:
    def arguments(given: Any, policy: str) -> Any:
        calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": given}}]
        read_calls = read(
            {"messages": [{"role": "assistant", "tool_calls": calls}]}, tool_arguments=policy
        ).messages
        assert read_calls[0]["tool_calls"][0]["id"] == "1"
        return read_calls[0]["tool_calls"][0]["function"]["arguments"]

    assert arguments('{"n": 123456789012345678901234567890}', "parse") == {
        "n": 123456789012345678901234567890
    }
    assert arguments("", "parse") == {} == arguments(None, "parse")
    assert arguments('{"ä":1}', "as_is") == '{"ä":1}' == arguments('{"ä":1}', "text")
    assert arguments({"ä": 1}, "text") == '{"ä": 1}'
    bad = {"messages": [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": "[1]"}]}]}
    assert "is JSON of a list, expected an object; pass tool_arguments='as_is'" in refused(bad)
    bad["messages"][0]["tool_calls"][0]["arguments"] = "{"
    assert "'arguments' in messages[0].tool_calls is a string that is not JSON" in refused(bad)


def test_sharegpt_calls_and_results() -> None:
    turns = [
        {"from": "human", "value": "1 + 2?"},
        {
            "from": "function_call",
            "value": "<think>\nadd\n</think>\n" + json.dumps(CALL),
            "weight": 0,
        },
        {"from": "observation", "value": "3"},
    ]
    messages = read(
        {"conversations": turns, "tools": json.dumps([TOOL])}, shape="sharegpt"
    ).messages
    thought = {"role": "assistant", "weight": 0, "content": "<think>\nadd\n</think>"}
    assert messages[1] == {**thought, "tool_calls": [WRAPPED]}
    assert messages[2] == {"role": "tool", "content": "3"}
    turns[1]["from"] = "acts"
    for role_map in ({"acts": "function_call"}, {"tool_call": ["acts"]}):
        assert (
            read({"conversations": turns}, shape="sharegpt", role_map=role_map).messages == messages
        )
    turns[1] |= {"from": "function_call", "value": "add(1, 2)"}
    assert "conversations[1] is a string that is not JSON" in refused(
        {"conversations": turns}, shape="sharegpt"
    )


def test_content_in_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert read({"messages": [{"role": "user", "content": parts}]}).messages[0]["content"] == parts
    assert (
        read({"messages": [{"role": "user", "content": parts}]}, content_parts="text").messages[0][
            "content"
        ]
        == "ab"
    )
    image = [{"type": "image", "url": "x"}]
    assert "a part of type 'image' without 'text', expected text only" in refused(
        {"messages": [{"role": "user", "content": image}]}, content_parts="text"
    )
    valued = [
        {"type": "reasoning", "value": "hm"},
        {"type": "text", "value": "a"},
        {"type": "text", "value": "b"},
    ]
    assert read({"messages": [{"role": "assistant", "content": valued}]}).messages == [
        {"role": "assistant", "content": "ab", "reasoning_content": "hm"}
    ]
    assert "has a part that is" in refused({"messages": [{"role": "user", "content": ["a"]}]})


def test_nulls_that_a_table_put_in_are_dropped_but_null_content_stays() -> None:
    call = {"name": "f", "arguments": {"a": None}}
    message = {
        "role": "assistant",
        "content": None,
        "name": None,
        "tool_calls": [{"type": None, "function": call}],
    }
    record = {
        "messages": [message, {"role": "user", "content": "x", "tool_calls": None}],
        "tools": [{"type": None}],
    }
    first, second = read(record).messages
    assert list(first) == ["role", "content", "tool_calls"] and first["content"] is None
    assert first["tool_calls"] == [{"type": None, "function": call}] and second == {
        "role": "user",
        "content": "x",
    }
    deep = read(record, nulls="deep")
    assert deep.messages[0]["tool_calls"] == [
        {"function": {"name": "f", "arguments": {}}}
    ] and deep.tools == [{}]
    assert read(record, nulls="keep").messages == record["messages"]


def test_what_comes_with_a_conversation() -> None:
    record = {
        "messages": MESSAGES,
        "documents": {"title": "x"},
        "chat_template_kwargs": '{"enable_thinking": false}',
    }
    conversation = read(record)
    assert conversation.documents == [{"title": "x"}] and conversation.kwargs == {
        "enable_thinking": False
    }
    assert read({"messages": MESSAGES, "chat_template_kwargs": {"a": None, "b": 1}}).kwargs == {
        "b": 1
    }
    assert read({"messages": []}).messages == []


@pytest.mark.parametrize(
    ("shape", "record", "reason"),
    [
        (
            "messages",
            {"text": "a"},
            "key 'messages' is missing among ['text'], expected a list of {role, content}",
        ),
        ("messages", {"messages": 3}, "key 'messages' is int, expected a list of {role, content}"),
        ("messages", {"messages": "[{]"}, "key 'messages' is a string that is not JSON"),
        (
            "messages",
            {"messages": ["hi"]},
            "messages[0] is str, expected a dict with role and content",
        ),
        ("messages", {"messages": [{"content": "a"}]}, "messages[0] has a role that is null"),
        (
            "messages",
            {"messages": [{"role": ["a"], "content": "a"}]},
            "messages[0] has a role that is list",
        ),
        (
            "messages",
            {"messages": [{"role": "narrator", "content": "a"}]},
            "pass role_map={'narrator': 'user'}",
        ),
        ("messages", {"messages": [{"role": "user"}]}, "messages[0] (user): 'content' is missing"),
        (
            "messages",
            {"messages": [{"role": "user", "content": None}]},
            "'content' is null, expected a string",
        ),
        (
            "messages",
            {"messages": [{"role": "user", "content": 3}]},
            "'content' is int, expected a string",
        ),
        (
            "messages",
            {"messages": MESSAGES, "system": "x"},
            "begins with a system message, and the record has another",
        ),
        (
            "messages",
            {"messages": MESSAGES[1:], "system": 3},
            "key 'system' is int, expected a string; system_key=None",
        ),
        (
            "messages",
            {"messages": MESSAGES, "tools": 3},
            "key 'tools' is int, expected a list, a dict, JSON text or null",
        ),
        (
            "messages",
            {"messages": MESSAGES, "tools": "{"},
            "key 'tools' is a string that is not JSON",
        ),
        (
            "messages",
            {"messages": MESSAGES, "tools": [3]},
            "a tool in key 'tools' is int, expected a JSON schema",
        ),
        (
            "messages",
            {"messages": MESSAGES, "chat_template_kwargs": [1]},
            "'chat_template_kwargs' is list, expected a dict",
        ),
        (
            "messages",
            {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
            "messages[0].tool_calls holds '{}'",
        ),
        (
            "messages",
            {"messages": [{"role": "tool_call", "content": ""}]},
            "is a tool call without content",
        ),
        ("sharegpt", {"a": 1}, "key 'conversations' is missing among ['a']"),
        (
            "sharegpt",
            {"conversations": [{"a": 1}]},
            "conversations[0] has the keys ['a'], expected role and content",
        ),
        ("sharegpt", {"conversations": [{"human": 1}]}, "conversations[0] has the keys ['human']"),
        ("alpaca", {"instruction": "a"}, "key 'output' is missing among ['instruction']"),
        (
            "alpaca",
            {"instruction": "a", "output": None},
            "key 'output' is null, expected a string; name the key with",
        ),
        (
            "alpaca",
            {"instruction": "a", "output": "b", "history": [["q"]]},
            "history[0] is \"['q']\", expected [question",
        ),
        ("prompt_completion", {"prompt": "a"}, "key 'completion' is missing among ['prompt']"),
        (
            "query_response",
            {"question": "a"},
            "of the usual names for output_key the record has none among ['question']",
        ),
        (
            "query_response",
            {"question": "a", "prompt": "b", "answer": "c"},
            "for input_key the record has 2: prompt, quest",
        ),
    ],
)
def test_what_cannot_be_read_is_named(shape: str, record: dict[str, Any], reason: str) -> None:
    assert reason in refused(record, shape=shape)


@pytest.mark.parametrize("flag", MASK_FLAGS.values(), ids=MASK_FLAGS)
def test_every_flag_that_frameworks_use_for_masks_is_read(flag: MaskFlag) -> None:
    """M5: `step_loss_mask` was ignored.  One table; a new flag is tested by being in it."""
    trains = None if flag.only_excludes else 1
    for value in (flag.excludes, bool(flag.excludes), float(flag.excludes)):
        for fractions in (False, True):
            message = {"role": "user", "content": ""}
            assert train_weight({**message, flag.name: value}, fractions=fractions) == 0
            assert train_weight({**message, flag.name: 1 - value}, fractions=fractions) == trains
            assert train_weight({**message, flag.name: None}, fractions=fractions) is None
    for value in ("no", [0, 1], 2, -1, 0.5):
        with pytest.raises(
            TemplateError, match=f"'{flag.name}' is .*, expected true, false, 0 or 1"
        ):
            train_weight({flag.name: value}, fractions=False)


def test_what_a_message_says_of_its_own_loss() -> None:
    assert train_weight({"train": True, "masked": False}, fractions=False) == 1
    assert train_weight({"weight": 0.5}, fractions=True) == 0.5
    with pytest.raises(TemplateError, match="contradict each other about its loss"):
        train_weight({"train": True, "weight": 0}, fractions=False)
    for value in (0.5, "yes", 2):
        with pytest.raises(TemplateError, match=r"'weight' is .*, expected true, false, 0 or 1"):
            train_weight({"weight": value}, fractions=False)
    with pytest.raises(
        TemplateError, match="pass message_weights=True to keep the weights of messages"
    ):
        train_weight({"weight": 0.5}, fractions=False)
    for message in (
        {"train": 0.5},
        {"masked": 0.5},
        {"weight": -1},
        {"weight": float("inf")},
        {"weight": float("nan")},
    ):
        with pytest.raises(TemplateError, match="expected true, false, 0 or 1"):
            train_weight(message, fractions=True)


def test_options_are_checked_and_named_in_the_identity() -> None:
    with pytest.raises(
        TemplateError,
        match="tool_arguments='json' is not known, expected one of 'parse', 'as_is', 'text'",
    ):
        Reader(tool_arguments="json")
    with pytest.raises(TemplateError, match=r"role_map\['a'\] is 3, expected a role"):
        Reader(role_map={"a": 3})  # type: ignore[dict-item]
    variants = [
        Reader(),
        Reader(shape="sharegpt"),
        Reader(messages_key="log"),
        Reader(system_key=None),
        Reader(role_map={"x": "user"}),
        Reader(tool_arguments="text"),
        Reader(content_parts="text"),
        Reader(nulls="keep"),
        Reader(separator="\n"),
    ]
    assert len({json.dumps(reader.identity()) for reader in variants}) == len(variants)
    assert Reader(role_map={"x": "user"}).identity() == Reader(role_map={"user": ["x"]}).identity()


KEYS = st.sampled_from(["name", "tool_call_id", "weight", "reasoning_content", "extra"])
ROLES = st.sampled_from(
    ["user", "assistant", "system", "human", "gpt", "Bot", "observation", "developer"]
)


@st.composite
def written(draw: st.DrawFn) -> dict[str, Any]:
    """A message with its keys in any order, some of them null."""
    role_key, content_key = draw(st.sampled_from([("role", "content"), ("from", "value")]))
    message = {role_key: draw(ROLES), content_key: draw(st.text(max_size=5))}
    message |= draw(
        st.dictionaries(KEYS, st.one_of(st.none(), st.text(max_size=3), st.integers()), max_size=3)
    )
    return {key: message[key] for key in draw(st.permutations(list(message)))}


@given(st.lists(written(), max_size=5))
def test_content_and_the_order_of_keys_are_kept(turns: list[dict[str, Any]]) -> None:
    conversation = read({"conversations": turns}, shape="sharegpt")
    assert len(conversation.messages) == len(turns)
    for message, turn in zip(conversation.messages, turns, strict=True):
        renamed = [
            {"from": "role", "value": "content"}.get(key, key)
            for key, value in turn.items()
            if value is not None
        ]
        assert list(message) == renamed
        assert message["content"] == turn.get("value", turn.get("content"))
        assert message["role"] in ("user", "assistant", "system", "tool", "developer")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["role", "content", "from", "value", "tool_calls", "function", "name", "type"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    ),
    st.sampled_from(["messages", "sharegpt", "alpaca", "prompt_completion", "query_response"]),
)
def test_whatever_a_record_holds_it_is_read_or_refused_and_stays_as_it_was(
    value: Any, shape: str
) -> None:
    record = dict.fromkeys(
        ["messages", "conversations", "instruction", "output", "prompt", "completion"], value
    )
    record |= {"tools": value, "history": value}
    before = json.dumps(record)
    try:
        conversation = Reader(shape=shape)(record, 3)
    except TemplateError as error:
        assert error.record == 3 and str(error)
    else:
        assert all(isinstance(message["role"], str) for message in conversation.messages)
    assert json.dumps(record) == before
