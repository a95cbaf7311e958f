"""The real miles (0.0.2 of the index) on Prompts: its data source, its rollout functions and its SFT rollout run as they are."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MILES = Path(sys.prefix) / "miles"
pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not MILES.is_dir(), reason="make installs it: tests/requirements-miles.txt"),
]

TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.content is string %}{{ m.content | upper if shout else m.content }}"
    "{% else %}{% for part in m.content %}{{ part.text if part.type == 'text' else '<' + part.type + '>' }}{% endfor %}{% endif %}"
    "<|endoftext|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TRAINED = 40  # prompts of 10 rollouts that are saved; 2 are killed before


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory, tokenizer_path: Path
) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("miles")
    tokenizer = folder / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "tokenizer.json").write_bytes((tokenizer_path / "tokenizer.json").read_bytes())
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|endoftext|>",
        "chat_template": TEMPLATE,
    }
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(config))
    job = [
        sys.executable,
        str(Path(__file__).with_name("miles_job.py")),
        str(folder),
        str(tokenizer),
        str(MILES),
    ]
    environment = {**os.environ, "PENSTOCK_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(job, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_m2_samples_are_those_of_miles_own_data_source_for_the_same_arguments(runs: dict) -> None:
    """M2: --apply-chat-template, its kwargs, --tool-key, --multimodal-keys and --rollout-max-prompt-len had no effect."""
    assert len(runs["compare"]) >= 13
    for name, found in runs["compare"].items():
        assert found["same"] and found["ours"] == found["theirs"], name
    assert 0 < runs["compare"]["short prompts"]["filtered"] < 40
    assert 0 < runs["compare"]["short texts"]["filtered"] < 40


@pytest.mark.parametrize(
    "name",
    [
        "standard, partial=True, nested=False",
        "standard, partial=True, nested=True",
        "standard, partial=False, nested=False",
        "standard, partial=False, nested=True",
        "class",
    ],
)
def test_m1_rollouts_of_miles_train_each_prompt_once_over_kills(runs: dict, name: str) -> None:
    """M1: miles passes the method get_samples to settle, not the data source.  M4: groups may be lists of lists."""
    run = runs[name]
    assert run["done"] == run["trained"] == run["prompts"] == TRAINED and run["most"] == 1
    assert run["dropped"]["not_selected"] > 0 and run["aborted"] > 0
    settled = run["done"] + run["dropped"]["not_selected"]
    assert settled + run["leased"] + run["returned"] == run["next"]


def test_m4_the_sft_rollout_of_miles_is_saved_and_resumed(runs: dict) -> None:
    """M4: save refused, because this rollout calls none of our functions; it trains all that it takes."""
    run = runs["sft"]
    assert run["done"] == run["trained"] == run["next"] == TRAINED and run["most"] == 1
    assert run["leased"] == 0 and run["dropped"] == {}


def test_m3_miles_counts_the_rollouts_of_an_epoch(runs: dict) -> None:
    """M3: --num-epoch makes its rollout manager ask len(data_source.dataset)."""
    assert runs["per epoch"] == 40 // 4


def test_mistakes_are_refused(runs: dict) -> None:
    refused = runs["refused"]
    assert "expected input_key 'question'" in refused["input"]
    assert "expected label_key 'answer'" in refused["label"]
    assert "'text' is a str, expected a list of media" in refused["media"]
    assert "expected at most --rollout-max-prompt-len 1; open Prompts with" in refused["long"]
    assert "--rollout-sample-filter-path penstock.extras.rl.slime" in refused["unsettled"]
    assert (
        "--custom-rollout-log-function-path penstock.extras.rl.slime" in refused["unsettled async"]
    )
    assert "settle was called with" in refused["stranger"]
