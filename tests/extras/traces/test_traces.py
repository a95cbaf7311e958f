"""Sessions of agents become conversations with tools and reasoning; what is left out is counted, what is not known is refused."""

import importlib.util
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.cli.main import run
from penstock.errors import BadRecord, SourceError
from penstock.extras.traces.secrets import KINDS, find_secrets
from penstock.sources import formats
from penstock.testing import check_source

from . import sessions
from .sessions import write

REAL_TEMPLATE = (
    "{% if tools %}<tools>{% for t in tools %}{{ t | tojson }}{% endfor %}</tools>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} {{ c.function.arguments | tojson }}</call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def plain(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages with the keys that both readers write, without empty ones."""
    keys = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id")
    return [{key: each[key] for key in keys if each.get(key)} for each in messages]


@pytest.mark.parametrize("harness", sessions.ALL)
def test_the_messages_are_those_that_datasets_reads(harness: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("teich") is None:
        pytest.skip("datasets reads agent traces with the package teich, which is not installed")
    import datasets

    file = write(tmp_path / f"{harness}.jsonl", sessions.ALL[harness]())
    expected = datasets.load_dataset("json", data_files=file, cache_dir=str(tmp_path / "hf"))
    found = ps.open(file, format=harness)
    assert len(found) == len(expected["train"])
    for record, row in zip(found, expected["train"], strict=True):
        assert plain(record["messages"]) == plain(row["messages"])
        assert record["session_id"] == row["session_id"]


@pytest.mark.parametrize("harness", sessions.ALL)
def test_the_harness_is_found_by_its_events(harness: str, tmp_path: Path) -> None:
    file = write(tmp_path / "some.jsonl", sessions.ALL[harness]())
    records = ps.open(file, format="agent_trace")
    assert list(records) == list(ps.open(file, format=harness))
    assert {record["harness"] for record in records} == {harness}


def test_a_session_of_claude_code(tmp_path: Path) -> None:
    file = write(tmp_path / "s.jsonl", sessions.claude_code())
    (record,) = ps.open(file, format="claude_code")
    roles = [message["role"] for message in record["messages"]]
    expected = "user assistant tool assistant tool tool assistant user assistant"
    assert roles == expected.split()
    first = record["messages"][1]
    assert first["reasoning_content"] == "Look first." and first["content"] == "I read the test."
    assert first["tool_calls"][0]["function"] == {
        "name": "Read",
        "arguments": {"file_path": "a.py"},
    }
    assert [m.get("name") for m in record["messages"] if m["role"] == "tool"] == [
        "Read",
        "Bash",
        "Bash",
    ]
    assert record["session_id"] == "s-1" and record["model"] == "claude-x"
    assert record["tools_without_schema"] == ["Bash", "Read"]  # the session does not hold them
    assert "left_out" not in record and "secrets" not in record


def test_sub_agents_are_records_of_their_own(tmp_path: Path) -> None:
    events = sessions.claude_code()
    side = [
        {**events[0], "isSidechain": True, "agentId": "a7", "uuid": "x1", "parentUuid": None},
        {**events[2], "isSidechain": True, "agentId": "a7", "uuid": "x2", "parentUuid": "x1"},
    ]
    file = write(tmp_path / "s.jsonl", [*events[:4], *side, *events[4:]])
    main, agent = ps.open(file, format="claude_code")
    (alone,) = ps.open(write(tmp_path / "alone.jsonl", events), format="claude_code")
    assert main["messages"] == alone["messages"]
    assert [message["role"] for message in agent["messages"]] == ["user", "assistant"]
    assert agent["session_id"] == "s-1/a7" and agent["parent_session_id"] == "s-1"


def test_what_is_left_out_is_counted_by_kind(tmp_path: Path) -> None:
    events = sessions.claude_code()
    beside = [
        {"type": "file-history-snapshot", "sessionId": "s-1"},
        {"type": "summary", "summary": "x", "sessionId": "s-1"},
        {
            **events[0],
            "message": {"role": "user", "content": "<command-name>/clear</command-name>"},
        },
        {**events[0], "isMeta": True},
        {
            **events[10],
            "isApiErrorMessage": True,
            "message": {"role": "assistant", "content": [{"type": "text", "text": "API Error"}]},
        },
    ]
    (record,) = ps.open(write(tmp_path / "s.jsonl", [*events, *beside]), format="claude_code")
    assert record["left_out"] == {
        "file-history-snapshot": 1,
        "local command": 1,
        "message that no model wrote": 1,
        "meta message": 1,
        "summary": 1,
    }
    assert "API Error" not in json.dumps(record["messages"])


def test_only_the_last_branch_of_a_tree_is_the_session(tmp_path: Path) -> None:
    events = sessions.pi()
    other = {
        "type": "message",
        "id": "b1",
        "parentId": "e3",
        "message": {"role": "assistant", "content": [{"type": "text", "text": "Abandoned."}]},
    }
    events.insert(4, other)
    (record,) = ps.open(write(tmp_path / "p.jsonl", events), format="pi")
    assert "Abandoned" not in json.dumps(record["messages"])
    assert record["left_out"]["entry of another branch"] == 1
    assert len(record["messages"]) == 4


def test_a_call_of_the_local_shell_of_codex_is_a_call(tmp_path: Path) -> None:
    def item(**payload: Any) -> dict[str, Any]:
        return {"timestamp": "t", "type": "response_item", "payload": payload}

    action = {"type": "exec", "command": ["ls"]}
    events = [
        *sessions.codex(),
        item(type="local_shell_call", call_id="c9", status="completed", action=action),
        item(type="function_call_output", call_id="c9", output="a"),
    ]
    (record,) = ps.open(write(tmp_path / "s.jsonl", events), format="codex")
    turn, result = record["messages"][-2:]
    assert turn["tool_calls"][0]["function"] == {"name": "local_shell", "arguments": action}
    assert result == {"role": "tool", "tool_call_id": "c9", "content": "a", "name": "local_shell"}


def test_tools_with_schemas_are_taken(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"command": {"type": "array"}}}
    events = sessions.codex()
    events[0]["payload"]["tools"] = [
        {"type": "function", "name": "shell", "description": "Run.", "parameters": schema}
    ]
    (record,) = ps.open(write(tmp_path / "c.jsonl", events), format="codex")
    function = {"name": "shell", "parameters": schema, "description": "Run."}
    assert record["tools"] == [{"type": "function", "function": function}]
    assert "tools_without_schema" not in record
    assert record["left_out"]["encrypted reasoning"] == 1


# What is not known


@pytest.mark.parametrize(
    ("harness", "event", "words"),
    [
        ("claude_code", {"type": "hologram", "sessionId": "s"}, "line 12: .*'hologram'"),
        ("codex", {"type": "response_item", "payload": {"type": "dream"}}, "line 12: .*'dream'"),
        ("pi", {"type": "prophecy", "id": "e7", "parentId": "e6"}, "line 8: .*'prophecy'"),
        ("droid", {"type": "omen"}, "line 6: .*'omen'"),
    ],
)
def test_events_of_unknown_kinds_are_refused_with_their_line(
    harness: str, event: dict[str, Any], words: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "s.jsonl", [*sessions.ALL[harness](), event])
    with pytest.raises(BadRecord, match=f"s.jsonl.*{words}"):
        list(ps.open(file, format=harness))
    (record,) = ps.open(file, format=harness, on_unknown="skip")
    assert sum("kind" in kind for kind in record["left_out"]) == 1
    assert plain(record["messages"]) == plain(
        ps.open(write(tmp_path / "t.jsonl", sessions.ALL[harness]()), format=harness)[0]["messages"]
    )


def test_broken_files_are_refused_with_their_line(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    file.write_text('{"type": "user", "sessionId": "s"\n')
    with pytest.raises(BadRecord, match=r"s\.jsonl.*line 1: not JSON"):
        list(ps.open(str(file), format="claude_code"))
    file.write_text('{"a": 1}\n')
    with pytest.raises(BadRecord, match="no event tells which agent has written this file"):
        list(ps.open(str(file), format="agent_trace"))
    image = [{"type": "image", "source": {}}]
    events = sessions.claude_code()
    events[9]["message"]["content"] = image
    with pytest.raises(BadRecord, match="line 10: a message has a part of the kind 'image'"):
        list(ps.open(write(file, events), format="claude_code"))
    with pytest.raises(SourceError, match="secrets is 'hide', expected one of mask, keep, refuse"):
        ps.open(str(file), format="claude_code", secrets="hide")


# Secrets

SECRETS = {
    "private_key": "-----BEGIN RSA PRIVATE KEY-----\nMIIabc\n-----END RSA PRIVATE KEY-----",
    "anthropic_key": "sk-ant-" + "api03-" + "a1" * 20,
    "openai_key": "sk-proj-" + "b2" * 20,
    "github_token": "ghp_" + "c3" * 18,
    "gitlab_token": "glpat-" + "d4" * 10,
    "huggingface_token": "hf_" + "e5" * 17,
    "aws_key": "AKIA" + "ABCD1234" * 2,
    "aws_secret": "aws_secret_access_key = " + "f6" * 20,
    "google_key": "AIza" + "g7h" * 11 + "xy",
    "slack_token": "xoxb-" + "123456789012-abc",
    "stripe_key": "sk_live_" + "h8" * 12,
    "npm_token": "npm_" + "i9" * 18,
    "wandb_key": "WANDB_API_KEY=" + "0a" * 20,
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abcdefghijkl",
    "bearer_token": "Authorization: Bearer " + "j0k1" * 6,
    "url_password": "postgres://admin:s3cretword@db.local/app",
    "basic_auth": "Authorization: Basic dXNlcjpwYXNzd29yZA",
    "command_password": "curl -u me:s3cretword=s3cretword",
    "variable": "DEPLOY_TOKEN=" + "k1l2" * 6,
    "password": 'password = "correct-horse-battery"',
    "home_path": "/home/alice/project/main.py",
}


WRONG = [
    ("claude_code", "type", (0, "type")),
    ("codex", "type", (2, "payload", "type")),
    ("pi", "id", (1, "id")),
    ("droid", "type", (1, "type")),
    ("hermes", "tool_calls", (0, "messages", 2, "tool_calls")),
    ("hermes", "the name", (0, "messages", 3, "tool_name")),
]


@pytest.mark.parametrize(("harness", "name", "place"), WRONG)
def test_a_value_of_another_type_is_refused_with_its_line(
    harness: str, name: str, place: tuple[Any, ...], tmp_path: Path
) -> None:
    events = getattr(sessions, harness)()
    holder = events
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = {"a": 1}
    with pytest.raises(BadRecord, match=rf"line {place[0] + 1}: .*{name}.*expected"):
        list(ps.open(write(tmp_path / "session.jsonl", events), format=harness))


def test_every_kind_of_secret_has_an_example() -> None:
    assert set(SECRETS) == set(KINDS)


@pytest.mark.parametrize("kind", SECRETS)
def test_a_secret_is_masked_and_counted_wherever_it_stands(kind: str, tmp_path: Path) -> None:
    secret = SECRETS[kind]
    events = sessions.claude_code()
    events[0]["message"]["content"] = f"see {secret} there"
    events[3]["message"]["content"][0]["input"] = {"text": [secret]}
    events[4]["message"]["content"][0]["content"] = secret
    file = write(tmp_path / "s.jsonl", events)
    (record,) = ps.open(file, format="claude_code")
    assert record["secrets"][kind] == 3
    written = json.dumps(record["messages"])
    assert f"[{kind}]" in written
    private = secret.split("=")[-1].split("://")[-1].strip(' "').splitlines()[0]
    assert private not in written
    assert "see " in written and " there" in written
    (kept,) = ps.open(file, format="claude_code", secrets="keep")
    assert kept["secrets"] == record["secrets"] and secret in kept["messages"][0]["content"]
    with pytest.raises(BadRecord, match=rf"holds secrets \({kind} 3\)|holds secrets"):
        list(ps.open(file, format="claude_code", secrets="refuse"))


def test_a_secret_in_a_key_or_under_a_key_that_says_so_is_masked() -> None:
    found: Counter[str] = Counter()
    keys = ["sk-ant-" + "a1" * 12, "sk-ant-" + "b2" * 12]
    arguments = {
        "password": "correct-horse",
        "env": {"API_KEY": "0123456789"},
        "headers": dict.fromkeys(keys, "x"),
        "/home/alice/a.py": ["read"],
        "is_secret": True,
        "password_file": "no secret",
    }
    assert find_secrets(arguments, found) == {
        "password": "[password]",
        "env": {"API_KEY": "[password]"},
        "headers": {"[anthropic_key]": "x", "[anthropic_key]'": "x"},
        "/home/[home_path]/a.py": ["read"],
        "is_secret": True,
        "password_file": "no secret",
    }
    assert found == {"password": 2, "anthropic_key": 2, "home_path": 1}


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ('{\\"api_key\\": \\"abcd1234efgh5678\\"}', '{\\"api_key\\": \\"[password]\\"}'),
        ("SECRET_KEY = 'django-abc123def456'", "SECRET_KEY = '[password]'"),
        ("AccountKey=abcdefghijklmnop0123==;x", "AccountKey=[password]"),
        ("export GITLAB_TOKEN=abcdef0123456789abcd", "export GITLAB_TOKEN=[variable]"),
        (
            '\\"Authorization\\": \\"Basic dXNlcjpwYXNz\\"',
            '\\"Authorization\\": \\"Basic [basic_auth]\\"',
        ),
        (
            "curl -sS -u 'me:s3cr3t' https://x.org",
            "curl -sS -u 'me:[command_password]' https://x.org",
        ),
        (
            "ls ~/.claude/projects/-home-alice-work/a.jsonl",
            "ls ~/.claude/projects/-home-[home_path]/a.jsonl",
        ),
    ],
)
def test_a_secret_in_quotes_of_json_in_a_variable_and_in_a_command_is_masked(
    text: str, masked: str
) -> None:
    found: Counter[str] = Counter()
    assert find_secrets(text, found) == masked
    assert found.total() == 1


@pytest.mark.parametrize(
    "text",
    [
        "a-",
        "sk-",
        "A_",
        "A",
        "TOKEN_",
        'secret"',
        "secret= ",
        "curl -u ",
        "eyJ-",
        "secret-",
        "a.",
        "http://",
    ],
)
def test_long_lines_are_searched_in_time_that_grows_with_their_length(text: str) -> None:
    line = text * (120_000 // len(text))
    start = time.process_time()
    find_secrets(line, Counter())
    assert time.process_time() - start < 10  # it was minutes


@pytest.mark.parametrize(
    "text",
    [
        "the password is asked for",
        "use sk-learn and hf_hub",
        "export TOKEN=$TOKEN",
        "https://example.org/a:b@c",
        "/home/ is empty",
        "the key of a map: value",
        "api_key=os.environ['KEY']",
        "PRIMARY_KEY = customer_id_2",
        "MAX_TOKEN = count_of_tokens(text)",
        "export GITLAB_TOKEN=$CI_JOB_TOKEN",
        "curl -u $USER:$PASSWORD https://x.org",
        "the Basic authorization is asked for",
    ],
)
def test_what_is_no_secret_stays(text: str, tmp_path: Path) -> None:
    events = sessions.claude_code()
    events[0]["message"]["content"] = text
    (record,) = ps.open(write(tmp_path / "s.jsonl", events), format="claude_code")
    assert record["messages"][0]["content"] == text


# Documents


def atif() -> dict[str, Any]:
    return {
        "schema_version": "ATIF-v1.5",
        "session_id": "a-1",
        "agent": {
            "name": "harness",
            "version": "1",
            "model_name": "m",
            "tool_definitions": [
                {
                    "type": "function",
                    "function": {"name": "run", "parameters": {"type": "object", "properties": {}}},
                }
            ],
        },
        "steps": [
            {"step_id": 1, "source": "system", "message": "You are an agent."},
            {"step_id": 2, "source": "user", "message": "List files."},
            {
                "step_id": 3,
                "source": "agent",
                "message": "I list them.",
                "reasoning_content": "ls will do.",
                "tool_calls": [
                    {"tool_call_id": "r1", "function_name": "run", "arguments": {"command": "ls"}}
                ],
                "observation": {"results": [{"source_call_id": "r1", "content": "a b"}]},
            },
            {"step_id": 4, "source": "agent", "message": "Two files.", "metrics": {}},
        ],
    }


def test_a_trajectory_of_atif_with_its_sub_agent(tmp_path: Path) -> None:
    whole = {**atif(), "subagent_trajectories": [{**atif(), "session_id": "a-2"}]}
    file = tmp_path / "trajectory.json"
    file.write_text(json.dumps(whole))
    main, agent = ps.open(str(file), format="atif")
    assert [m["role"] for m in main["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert main["messages"][2]["reasoning_content"] == "ls will do."
    assert main["messages"][3]["tool_call_id"] == "r1" and main["messages"][3]["name"] == "run"
    assert main["tools"][0]["function"]["name"] == "run"
    assert agent["session_id"] == "a-2" and agent["parent_session_id"] == "a-1"
    file.write_text(json.dumps({**atif(), "schema_version": "ATIF-v9"}))
    with pytest.raises(BadRecord, match="'schema_version' is 'ATIF-v9'"):
        list(ps.open(str(file), format="atif"))


def test_one_trajectory_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    file = write(tmp_path / "many.jsonl", [atif(), {"schema_version": "x"}, atif()])
    source = ps.open(file, format="atif", on_bad="skip")
    assert len(list(source)) == 2
    with pytest.raises(BadRecord, match=r"many\.jsonl:2.*'schema_version' is 'x'"):
        list(ps.open(file, format="atif"))


HARMONY = {
    "messages": [
        {"role": "system", "content": [{"type": "system_content", "model_identity": "x"}]},
        {
            "role": "developer",
            "content": [
                {
                    "type": "developer_content",
                    "instructions": "Be short.",
                    "tools": {
                        "functions": {
                            "name": "functions",
                            "tools": [
                                {
                                    "name": "weather",
                                    "description": "Weather.",
                                    "parameters": {"type": "object", "properties": {}},
                                }
                            ],
                        }
                    },
                }
            ],
        },
        {"role": "user", "content": [{"type": "text", "text": "Rain?"}]},
        {"role": "assistant", "channel": "analysis", "content": "Ask the tool."},
        {
            "role": "assistant",
            "channel": "commentary",
            "recipient": "functions.weather",
            "content_type": "<|constrain|>json",
            "content": '{"city": "Bonn"}',
        },
        {"role": "tool", "name": "functions.weather", "channel": "commentary", "content": "dry"},
        {"role": "assistant", "channel": "final", "content": "No rain."},
    ]
}
HARMONY_TEXT = (
    "<|start|>system<|message|>You are x.<|end|><|start|>developer<|message|>Be short.<|end|>"
    "<|start|>user<|message|>Rain?<|end|>"
    "<|start|>assistant<|channel|>analysis<|message|>Ask the tool.<|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    '{"city": "Bonn"}<|call|>'
    "<|start|>functions.weather to=assistant<|channel|>commentary<|message|>dry<|end|>"
    "<|start|>assistant<|channel|>final<|message|>No rain.<|return|>"
)


def test_harmony_as_json_and_as_text(tmp_path: Path) -> None:
    file = write(tmp_path / "h.jsonl", [HARMONY, {"text": HARMONY_TEXT}])
    first, second = ps.open(file, format="harmony")
    for record in (first, second):
        assert record["messages"][-3:] == [
            {
                "role": "assistant",
                "content": "",
                "reasoning_content": "Ask the tool.",
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "weather", "arguments": {"city": "Bonn"}},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "dry", "name": "weather"},
            {"role": "assistant", "content": "No rain."},
        ]
    assert first["tools"][0]["function"]["name"] == "weather"
    assert first["left_out"] == {"system message of Harmony": 1}
    text = HARMONY_TEXT.replace("Be short.", "namespace functions { type weather = () => any; }")
    with pytest.raises(BadRecord, match="written as text, which cannot be read back"):
        list(ps.open(write(tmp_path / "t.jsonl", [{"text": text}]), format="harmony"))
    browser = {"role": "assistant", "recipient": "browser.search", "content": "x"}
    odd = {"messages": [{"role": "user", "content": "x"}, browser]}
    with pytest.raises(
        BadRecord, match=r"recipient 'browser\.search'; built-in tools are not read"
    ):
        list(ps.open(write(tmp_path / "b.jsonl", [odd]), format="harmony"))


def test_trajectories_of_swe_smith(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "fix"}]},
        {
            "role": "assistant",
            "content": "looking",
            "tool_calls": [
                {"id": "b1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "content": "out", "tool_call_ids": ["b1"]},
    ]
    row = {"instance_id": "i", "traj_id": "t", "model": "m", "resolved": True}
    file = write(
        tmp_path / "t.jsonl",
        [{**row, "messages": json.dumps(messages)}, {**row, "messages": messages}],
    )
    first, second = ps.open(file, format="swe_smith")
    assert first == second and first["messages"][3]["name"] == "bash"
    assert first["messages"][2]["tool_calls"][0]["function"]["arguments"] == {}


def test_task_folders_of_harbor_as_datasets_reads_them(tmp_path: Path) -> None:
    import datasets

    for name in ("one", "two"):
        folder = tmp_path / "tasks" / name
        folder.mkdir(parents=True)
        (folder / "task.toml").write_text(
            f'version = "1.0"\n[task]\nname = "org/{name}"\n[metadata]\ndifficulty = "easy"\n'
        )
        (folder / "instruction.md").write_text(f"# harbor-canary GUID 1\n\nDo {name}.\n")
    expected = datasets.load_dataset(
        "harbor", data_dir=str(tmp_path), cache_dir=str(tmp_path / "hf")
    )
    rows = next(iter(expected.values()))
    found = {record["name"]: record for record in ps.open(str(tmp_path), format="harbor")}
    assert {row["name"]: row["instruction"] for row in rows} == {
        name: record["instruction"] for name, record in found.items()
    }
    assert found["org/one"]["messages"] == [{"role": "user", "content": "Do one.\n"}]
    assert found["org/one"]["left_out"] == {"canary line": 1}
    (tmp_path / "tasks" / "two" / "instruction.md").unlink()
    with pytest.raises(BadRecord, match=r"two.*task\.toml.*instruction\.md is missing"):
        list(ps.open(str(tmp_path), format="harbor"))


def test_secrets_in_a_task_of_harbor_are_masked_in_its_settings_too(tmp_path: Path) -> None:
    folder = harbor(tmp_path) / "tasks" / "one"
    key = "sk-ant-" + "a1" * 12
    with (folder / "task.toml").open("a") as file:
        file.write(f'[environment.env]\nANTHROPIC_API_KEY = "{key}"\n')
    (folder / "instruction.md").write_text("Look into /home/alice/work.\n")
    (record,) = ps.open(str(tmp_path), format="harbor")
    assert record["messages"][0]["content"] == "Look into /home/[home_path]/work.\n"
    assert record["instruction"] == record["messages"][0]["content"]
    assert key not in json.dumps(record)
    assert record["secrets"] == {"anthropic_key": 1, "home_path": 2}  # a text appears twice
    (kept,) = ps.open(str(tmp_path), format="harbor", secrets="keep")
    assert kept["config"]["environment"]["env"] == {"ANTHROPIC_API_KEY": key}
    with pytest.raises(BadRecord, match="holds secrets"):
        list(ps.open(str(tmp_path), format="harbor", secrets="refuse"))


# The contract of sources


def swe_smith() -> list[dict[str, Any]]:
    question = {"role": "user", "content": "fix it"}
    answer = {"role": "assistant", "content": "done"}
    return [{"instance_id": "i", "traj_id": "t", "messages": [question, answer]}]


def harbor(folder: Path) -> Path:
    task = folder / "tasks" / "one"
    task.mkdir(parents=True)
    (task / "task.toml").write_text('version = "1.0"\n[task]\nname = "org/one"\n')
    (task / "instruction.md").write_text("Do one.\n")
    return folder


EVENTS = {
    **{name: make() for name, make in sessions.ALL.items()},
    "agent_trace": sessions.claude_code(),
    "atif": [atif()],
    "harmony": [HARMONY],
    "swe_smith": swe_smith(),
}
OF_TRACES = [name for name, shape in formats().items() if ".extras.traces." in shape.code]


@pytest.mark.parametrize("name", OF_TRACES)
def test_each_format_keeps_the_contract_of_sources(name: str, tmp_path: Path) -> None:
    if name == "harbor":
        path = str(harbor(tmp_path))
    else:
        path = write(tmp_path / "some.jsonl", EVENTS[name])
    source = ps.open(path, format=name)
    assert len(source)
    check_source(source)


# Masks


@pytest.mark.parametrize("harness", sessions.ALL)
def test_the_turns_of_the_agent_are_trained_and_nothing_else(
    harness: str, tokenizer_path: Path, tmp_path: Path
) -> None:
    file = write(tmp_path / "s.jsonl", sessions.ALL[harness]())
    source = ps.open(file, format=harness)
    store = ps.prepare(
        source,
        tokenizer=tokenizer_path,
        chat_template=REAL_TEMPLATE,
        cache_dir=str(tmp_path / "cache"),
        on_missing_tokens="warn",
    )
    for row, record in enumerate(source):
        sample = store[row]
        trained = store.template.decode(sample.input_ids[sample.loss_mask])
        assert trained == "".join(map(rendered, record["messages"]))


def rendered(message: dict[str, Any]) -> str:
    """What the template prints of a turn that is trained."""
    if message["role"] != "assistant":
        return ""
    reasoning = message.get("reasoning_content")
    thoughts = f"<think>{reasoning}</think>" if reasoning else ""
    calls = "".join(
        f"<call>{call['function']['name']} {json.dumps(call['function']['arguments'])}</call>"
        for call in message.get("tool_calls", ())
    )
    return f"{thoughts}{message['content']}{calls}<|im_end|>"


def test_check_tells_the_secrets_and_what_is_left_out(
    tokenizer_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = sessions.pi()
    events[3]["message"]["content"][0]["text"] = "look into /home/alice/work"
    write(tmp_path / "s.jsonl", events)
    (tmp_path / "template.jinja").write_text(REAL_TEMPLATE)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"data:\n  path: s.jsonl\n  format: pi\ntokenizer: {tokenizer_path}\nchat_template: template.jinja\n"
        f"on_missing_tokens: warn\nmax_length: 4096\nbatch_size: 1\ncache_dir: cache\n"
    )
    run(["check", str(recipe), "--verbose"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "home_path 1" in shown and "masked" in shown, shown
    assert "model_change" not in shown and "thinking_level_change 1" in shown
