"""Is a configuration of trl, axolotl or LLaMA-Factory a recipe that loads, with every key of theirs in it?"""

import dataclasses
import json
import types
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.cli.main import run
from penstock.errors import RecipeError
from penstock.extras.imports.foreign import import_config

CHAT = [
    {
        "messages": [
            {"role": "user", "content": f"Q {n}?"},
            {"role": "assistant", "content": f"A {n}."},
        ]
    }
    for n in range(20)
]
CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture
def folder(tmp_path: Path, tokenizer_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Data of every kind, a tokenizer with a chat template, and the registry of LLaMA-Factory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tok").mkdir()
    for file in (
        tokenizer_path.parent.glob("*") if tokenizer_path.is_file() else tokenizer_path.glob("*")
    ):
        if file.name.startswith("tokenizer") and file.is_file():
            (tmp_path / "tok" / file.name).write_bytes(file.read_bytes())
    config = {"eos_token": "<|endoftext|>", "chat_template": CHATML}
    (tmp_path / "tok" / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "chat.jsonl").write_text("".join(json.dumps(record) + "\n" for record in CHAT))
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "one", "completion": " two"}\n' * 20)
    (tmp_path / "data").mkdir()
    share = [{"conv": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]}] * 20
    (tmp_path / "data" / "share.json").write_text(json.dumps(share))
    (tmp_path / "data" / "alpaca.json").write_text(
        json.dumps([{"instruction": "Q", "input": "", "output": "A"}] * 20)
    )
    tags = {"role_tag": "from", "content_tag": "value", "user_tag": "human", "assistant_tag": "gpt"}
    entries: dict[str, Any] = {
        "al": {"file_name": "alpaca.json"},
        "sh": {
            "file_name": "share.json",
            "formatting": "sharegpt",
            "columns": {"messages": "conv"},
            "tags": tags,
        },
    }
    turns = [
        [{"from": "human", "value": "hi"}],
        {"from": "gpt", "value": "good"},
        {"from": "gpt", "value": "bad"},
    ]
    pairs = [dict(zip(("conv", "chosen", "rejected"), turns, strict=True))] * 20
    (tmp_path / "dpo.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    (tmp_path / "data" / "dpo.json").write_text(json.dumps(pairs))
    (tmp_path / "data" / "kto.json").write_text(
        json.dumps([{**share[0], "good": row % 2 == 0} for row in range(20)])
    )
    (tmp_path / "text.jsonl").write_text('{"text": "the quick brown fox"}\n' * 20)
    answers = {"messages": "conv", "chosen": "chosen", "rejected": "rejected"}
    entries |= {
        "dpo": {
            "file_name": "dpo.json",
            "formatting": "sharegpt",
            "ranking": True,
            "columns": answers,
            "tags": tags,
        },
        "kto": {
            "file_name": "kto.json",
            "formatting": "sharegpt",
            "columns": {"messages": "conv", "kto_tag": "good"},
            "tags": tags,
        },
    }
    (tmp_path / "data" / "dataset_info.json").write_text(json.dumps(entries))
    return tmp_path


def imported(
    folder: Path, config: dict[str, Any] | str, name: str = "theirs.yaml"
) -> tuple[dict[str, Any], str]:
    """Import a configuration; return the recipe's keys and its text."""
    (folder / name).write_text(
        config if isinstance(config, str) else yaml.safe_dump(config, sort_keys=False)
    )
    assert run(["import", str(folder / name), "-o", str(folder / "r.yaml"), "--force"]) == 0
    text = (folder / "r.yaml").read_text()
    ps.Recipe.read(folder / "r.yaml")
    found: dict[str, Any] = yaml.safe_load(text)
    return found, text


TRL: dict[str, Any] = {"model_name_or_path": "tok", "dataset_name": "chat.jsonl"}
AXOLOTL: dict[str, Any] = {
    "base_model": "tok",
    "datasets": [{"path": "chat.jsonl", "type": "chat_template"}],
}
FACTORY: dict[str, Any] = {
    "model_name_or_path": "tok",
    "stage": "sft",
    "dataset": "al,sh",
    "template": "qwen3",
}


def test_defaults_of_trl_are_written_out(folder: Path) -> None:
    found, text = imported(folder, TRL)
    expected = {
        "max_length": 1024,
        "packing": "none",
        "on_overlong": "truncate",
        "train_on": "all",
        "batch_size": 8,
        "epochs": 3,
    }
    assert found.items() >= {**expected, "seed": 42, "tokenizer": "tok", "last_step": "pad"}.items()
    assert found["data"] == {"chat": {"path": "chat.jsonl"}}
    assert "# max_length: 1024 (default of trl)" in text


def test_trl_trains_completions_where_records_have_them(folder: Path) -> None:
    assert imported(folder, {**TRL, "dataset_name": "pairs.jsonl"})[0]["train_on"] == "completion"
    assert (
        imported(folder, {**TRL, "dataset_name": "pairs.jsonl", "completion_only_loss": False})[0][
            "train_on"
        ]
        == "all"
    )
    assert imported(folder, {**TRL, "assistant_only_loss": True})[0]["train_on"] == "assistant"
    assert "write train_on: completion" in imported(folder, {**TRL, "dataset_name": "org/name"})[1]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("bfd", ("best_fit", "truncate")),
        ("bfd_split", ("best_fit", "split")),
        ("wrapped", ("concat", "split")),
    ],
)
def test_packings_of_trl(strategy: str, expected: tuple[str, str], folder: Path) -> None:
    found, _ = imported(folder, {**TRL, "packing": True, "packing_strategy": strategy})
    assert (found["packing"], found["on_overlong"], found["padding_free"]) == (*expected, True)


def test_mixtures_of_trl_keep_shares_and_splits(folder: Path) -> None:
    mixture = [
        {"path": "json", "data_files": "chat.jsonl", "fraction": 0.3},
        {
            "path": "org/name",
            "name": "small",
            "split": "train[:10%]",
            "fraction": 0.7,
            "columns": ["a"],
        },
    ]
    found, text = imported(
        folder, {"model_name_or_path": "tok", "max_length": 64, "datasets": mixture}
    )
    assert found["data"]["chat"] == {"path": "chat.jsonl", "weight": 0.3}
    assert found["data"]["name"] == {
        "path": "org/name",
        "config": "small",
        "split": "train[:10%]",
        "weight": 0.7,
    }
    assert "datasets[1].columns: ['a']" in text


def test_a_command_line_and_a_script_are_read_and_not_run(folder: Path) -> None:
    line = "accelerate launch x.py \\\n  --model_name_or_path tok --dataset-name=chat.jsonl --packing --max_length 512 # fast\n"
    found, _ = imported(folder, line, "run.sh")
    assert (found["max_length"], found["packing"], found["data"]["chat"]["path"]) == (
        512,
        "best_fit",
        "chat.jsonl",
    )
    script = "import nothing_of_this\nraise SystemExit\nargs = trl.SFTConfig(max_length=256, num_train_epochs=n * 2, seed=7)\n"
    found, text = imported(folder, script, "train.py")
    assert (found["max_length"], found["seed"]) == (256, 7)
    assert "# num_train_epochs: n * 2, which the script computes: WRITE ITS VALUE here" in text
    assert "the configuration names no data" in text


def test_axolotl_s_settings(folder: Path) -> None:
    part = {
        "path": "chat.jsonl",
        "type": "chat_template",
        "ds_type": "json",
        "field_messages": "messages",
        "roles": {"user": ["human"]},
        "message_property_mappings": {"role": "role", "content": "content", "weight": "w"},
        "roles_to_train": ["assistant"],
        "train_on_eos": "turn",
        "shards": 4,
    }
    config = {
        **AXOLOTL,
        "datasets": [part],
        "sequence_len": 2048,
        "sample_packing": True,
        "num_epochs": 2.5,
        "chat_template": "chatml",
        "excess_length_strategy": "raise",
        "val_set_size": 0.1,
        "learning_rate": 2e-4,
        "test_datasets": [{"path": "chat.jsonl"}],
    }
    found, text = imported(folder, config)
    assert found["data"]["chat"] == {
        "path": "chat.jsonl",
        "template": "messages",
        "messages_key": "messages",
        "train_on": ["assistant"],
        "role_key": "role",
        "content_key": "content",
        "role_map": {"user": ["human"]},
        "format": "jsonl",
    }
    assert found["eval"] == {"held_out": {"path": "chat.jsonl"}}
    assert (found["packing"], found["on_overlong"], found["epochs"], found["batch_size"]) == (
        "best_fit",
        "error",
        2.5,
        1,
    )
    for said in (
        "datasets[0].shards: 4  (no equivalent)",
        "mappings.weight: w",
        "a template of axolotl",
    ):
        assert said in text
    found, _ = imported(folder, AXOLOTL)
    assert (found["max_length"], found["packing"], found["on_overlong"], found["train_on"]) == (
        512,
        "none",
        "drop",
        "assistant",
    )


def test_llama_factory_s_settings_and_its_registry(folder: Path) -> None:
    found, text = imported(
        folder,
        {
            **FACTORY,
            "interleave_probs": "0.3,0.7",
            "mix_strategy": "interleave_over",
            "max_samples": 10,
        },
    )
    assert found["data"]["al"] == {
        "path": "data/alpaca.json@[:10]",
        "weight": 0.3,
        "template": "alpaca",
    }
    assert found["data"]["sh"]["role_map"] == {"user": ["human"], "assistant": ["gpt"]}
    assert (
        found["max_length"],
        found["on_overlong"],
        found["train_on"],
        found["stopping_strategy"],
    ) == (
        2048,
        "truncate",
        "assistant",
        "all_exhausted",
    )
    assert "max_samples: the first 10" in text and "random" not in text
    assert imported(folder, {**FACTORY, "neat_packing": True})[0]["packing"] == "best_fit"
    assert imported(folder, {**FACTORY, "mask_history": True})[0]["train_on"] == "last"
    assert (
        imported(folder, {**FACTORY, "stage": "pt", "cutoff_len": 99})[0]["data"]["al"]["template"]
        == "text"
    )


DPO = {
    "base_model": "tok",
    "rl": "dpo",
    "datasets": [{"path": "dpo.jsonl", "type": "chat_template.default", "field_messages": "conv"}],
}
PRETRAINING = {
    "base_model": "tok",
    "pretraining_dataset": [{"path": "text.jsonl", "type": "pretrain"}],
    "streaming": True,
}


@pytest.mark.parametrize(
    "config",
    [
        TRL,
        {**TRL, "packing": True},
        {**TRL, "dataset_name": "pairs.jsonl"},
        AXOLOTL,
        {**AXOLOTL, "sample_packing": True},
        DPO,
        PRETRAINING,
        FACTORY,
        {**FACTORY, "stage": "dpo", "dataset": "dpo"},
        {**FACTORY, "stage": "kto", "dataset": "kto"},
    ],
)
def test_the_recipe_passes_its_check_and_makes_batches(
    config: dict[str, Any], folder: Path
) -> None:
    imported(folder, config)
    assert run(["check", str(folder / "r.yaml")]) == 0
    assert next(iter(ps.load(folder / "r.yaml", output="numpy", progress="none")))["input_ids"].size


@pytest.mark.parametrize(
    "name", ["DPOConfig", "KTOConfig", "GRPOConfig", "RewardConfig", "RLOOConfig"]
)
def test_every_field_of_trl_s_other_trainers_is_known(name: str, folder: Path) -> None:
    trl = pytest.importorskip("trl")
    names = {each.name for each in dataclasses.fields(getattr(trl, name))}
    values = {"max_length": 64, "packing_strategy": "bfd"}
    (folder / "all.py").write_text(
        f"{name}({', '.join(f'{key}={values.get(key, 1)!r}' for key in sorted(names))})"
    )
    found = import_config(folder / "all.py")
    found.text(folder / "r.yaml")
    assert found.unknown == [] and found.tool == "trl"


def test_every_field_of_trl_s_classes_is_known(folder: Path) -> None:
    trl = pytest.importorskip("trl")
    from trl.scripts.utils import DatasetMixtureConfig

    names = {
        each.name
        for kind in (trl.SFTConfig, trl.ScriptArguments, trl.ModelConfig, DatasetMixtureConfig)
        for each in dataclasses.fields(kind)
    }
    about_data = {
        "dataset_name",
        "dataset_config",
        "dataset_train_split",
        "dataset_test_split",
        "dataset_streaming",
        "streaming",
        "datasets",
        "test_split_size",
        "chat_template_path",
        "dataset_text_field",
        "dataset_kwargs",
        "dataset_num_proc",
        "eos_token",
        "pad_token",
        "max_length",
        "truncation_mode",
        "shuffle_dataset",
        "packing",
        "packing_strategy",
        "padding_free",
        "pad_to_multiple_of",
        "eval_packing",
        "completion_only_loss",
        "assistant_only_loss",
        "per_device_train_batch_size",
        "num_train_epochs",
        "max_steps",
        "seed",
        "data_seed",
        "train_sampling_strategy",
        "model_name_or_path",
        "gradient_accumulation_steps",
        "ignore_data_skip",
        *(name for name in names if name.startswith("dataloader_")),
    }
    assert about_data <= names
    values = {
        "datasets": [],
        "max_length": 64,
        "packing_strategy": "bfd",
        "dataset_name": "chat.jsonl",
    }
    (folder / "all.yaml").write_text(
        yaml.safe_dump({name: values.get(name, 1) for name in sorted(names)})
    )
    found = import_config(folder / "all.yaml", tool="trl")
    text = found.text(folder / "r.yaml")
    assert found.unknown == []
    assert {
        name for name in about_data if f"#   {name}: 1  (the trainer's or the model's)" in text
    } == set()
    assert {
        name
        for name in names - about_data
        if f"#   {name}: 1  (the trainer's or the model's)" not in text
    } == set()


FLAGS = """packing mask_history train_on_prompt train_on_inputs group_by_length dataloader_drop_last sample_packing neat_packing
  streaming padding_free shuffle_dataset assistant_only_loss completion_only_loss"""
NUMBERS = "max_length max_seq_length seed data_seed epoch_size lora_r pad_to_multiple_of surprise"
MORE = {
    **dict.fromkeys(FLAGS.split(), st.booleans()),
    **dict.fromkeys(NUMBERS.split(), st.just(64)),
    "val_size": st.just(0.1),
    "dataset_text_field": st.sampled_from(["text", "messages"]),
    "max_steps": st.sampled_from([-1, 10]),
}


@settings(
    max_examples=40,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    of=st.sampled_from([("trl", TRL), ("axolotl", AXOLOTL), ("llama-factory", FACTORY)]),
    more=st.fixed_dictionaries({}, optional=MORE),
)
def test_no_key_is_lost_and_the_recipe_loads_whatever_the_configuration(
    of: tuple[str, dict[str, Any]], more: dict[str, Any], folder: Path
) -> None:
    tool, base = of
    config = {**more, **base}
    (folder / "any.yaml").write_text(yaml.safe_dump(config))
    found = import_config(folder / "any.yaml", tool=tool)
    text = found.text(folder / "r.yaml")
    (folder / "r.yaml").write_text(text)
    loader = ps.load(
        folder / "r.yaml", output="numpy", progress="none", last_step="pad"
    )  # 20 samples may be less than a step
    assert next(iter(loader))["input_ids"].size
    comments = [line.partition("#")[2] for line in text.splitlines()]
    for key in config:
        assert any(f" {key}: " in each or f" {key}[" in each for each in comments), (key, text)
    assert {"surprise", "epoch_size"} & set(more) <= set(found.unknown)


def test_mistakes_are_named(folder: Path) -> None:
    cases: list[tuple[dict[str, Any] | str, str, str]] = [
        ({"some": 1}, "a.yaml", "cannot tell which tool wrote this file (keys: some); pass --from"),
        (
            {"model_class": "llm", "train_dataset": "a.yaml", "cutoff_len": 9},
            "a.yaml",
            "keys of LLaMA-Factory's v1 (model_class, train_dataset), which import does not read",
        ),
        ("echo hello\n", "a.sh", "no settings found"),
        ("echo 'open\n", "a.sh", "not a command line"),
        ("def x(:\n", "a.py", "a.py:1: not Python"),
        (
            {**TRL, "packing_strategy": "best"},
            "a.yaml",
            "packing_strategy is 'best', expected one of bfd",
        ),
        (
            {**TRL, "num_train_epochs": "many"},
            "a.yaml",
            "num_train_epochs is many, expected a number",
        ),
        ({**AXOLOTL, "datasets": "x"}, "a.yaml", "datasets is x, expected a list"),
        (
            {**AXOLOTL, "datasets": ["x"]},
            "a.yaml",
            "datasets[0] is x, expected a mapping with a path",
        ),
        (
            {**AXOLOTL, "excess_length_strategy": "cut"},
            "a.yaml",
            "expected drop, truncate or raise",
        ),
        ({**FACTORY, "stage": "ppo"}, "a.yaml", "stage is 'ppo', expected sft, pt, dpo, rm or kto"),
        (
            {**FACTORY, "dataset": "gone"},
            "a.yaml",
            "the dataset 'gone' is not in dataset_info.json",
        ),
        ({**FACTORY, "dataset_dir": "gone"}, "a.yaml", "name the file with --dataset-info"),
        ({**FACTORY, "interleave_probs": "1"}, "a.yaml", "1 interleave_probs for 2 datasets"),
    ]
    for config, name, said in cases:
        (folder / name).write_text(config if isinstance(config, str) else yaml.safe_dump(config))
        with pytest.raises(RecipeError) as caught:
            import_config(folder / name)
        assert said in str(caught.value)
    (folder / "r.yaml").write_text("data: x\n")
    (folder / "a.yaml").write_text(yaml.safe_dump(TRL))
    assert run(["import", "a.yaml", "-o", "r.yaml"]) == 3


def test_scripts_with_variables_pipes_and_several_calls(folder: Path) -> None:
    line = "trl sft --model_name_or_path $MODEL --dataset_name chat.jsonl --packing False --seed 3 | tee log.txt && echo --\n"
    found, text = imported(folder, line, "run.sh")
    assert "tokenizer" not in found and (found["packing"], found["seed"]) == ("none", 3)
    assert "model_name_or_path: $MODEL  (computed by the script)" in text and "log.txt" not in text
    assert (
        "**more: more  (computed by the script)"
        in imported(folder, "SFTConfig(max_length=64, **more)\n", "a.py")[1]
    )
    for name, twice in (
        ("a.sh", "x --max_length 5\ny --max_length 6\n"),
        ("a.py", "SFTConfig(seed=1)\nSFTConfig(seed=2)\n"),
    ):
        (folder / name).write_text(twice)
        with pytest.raises(
            RecipeError, match="is there twice; keep the command or the call that trains"
        ):
            import_config(folder / name, tool="trl")


def test_files_by_split_and_shares_of_axolotl_choose_rows(folder: Path) -> None:
    files = {"train": "chat.jsonl", "dev": "pairs.jsonl"}
    part = {"path": "json", "data_files": files, "split": "dev[:50%]"}
    found, _ = imported(folder, {"model_name_or_path": "tok", "datasets": [part]})
    assert found["data"] == {"pairs": {"path": "pairs.jsonl", "split": "train[:50%]"}}
    (folder / "a.yaml").write_text(
        yaml.safe_dump({"model_name_or_path": "tok", "datasets": [{**part, "split": "x"}]})
    )
    with pytest.raises(RecipeError, match="has no split 'x', expected one of dev, train"):
        import_config(folder / "a.yaml")
    found, text = imported(
        folder, {**AXOLOTL, "datasets": [{**AXOLOTL["datasets"][0], "weight": 0.25}]}
    )
    chosen = "chat.jsonl@[split=test, test_size=0.25, seed=42]"
    assert found["data"]["chat"]["path"] == chosen and "another random choice" in text
    (folder / "a.yaml").write_text(yaml.safe_dump({**AXOLOTL, "rl": "grpo"}))
    with pytest.raises(
        RecipeError, match="rl is 'grpo', expected one of dpo, ipo, orpo, simpo, kto"
    ):
        import_config(folder / "a.yaml")


def test_n11_a_random_split_stays_a_random_split(folder: Path) -> None:
    """N11: random splits of other tools became the last rows, which may be of another kind than the others."""
    found, text = imported(folder, {**AXOLOTL, "val_set_size": 0.1, "eval_sample_packing": False})
    parts = "chat.jsonl@[split={}, test_size=0.1, seed=42]"
    assert found["data"]["chat"]["path"] == parts.format("train")
    held_out = {"path": parts.format("test"), "packing": "none"}
    assert found["eval"]["chat_held_out"].items() >= held_out.items()
    assert "as many records by another random choice than axolotl's" in text
    sizes = [len(ps.open(parts.format(part))) for part in ("train", "test")]
    assert sizes == [18, 2]
    assert next(iter(ps.load(folder / "r.yaml", part="eval", output="numpy")))["input_ids"].size
    found, _ = imported(folder, {**FACTORY, "dataset": "sh", "val_size": 5, "max_samples": 10})
    named = "data/share.json@[:10]@[split={}, test_size=5, seed=42]"
    assert found["data"]["sh"]["path"] == named.format("train")
    assert found["eval"]["sh_held_out"]["path"] == named.format("test")
    assert [len(ps.open(named.format(part))) for part in ("train", "test")] == [5, 5]
    found, text = imported(folder, {**FACTORY, "val_size": 0.125})
    assert [each["path"] for each in found["eval"].values()] == [
        "data/alpaca.json@[split=test, test_size=0.125, seed=42]",
        "data/share.json@[split=test, test_size=0.125, seed=42]",
    ]
    assert "llama-factory chooses from all of them together" in text
    found, _ = imported(folder, {**TRL, "test_split_size": 0.2, "seed": 7})
    assert found["eval"]["chat_held_out"]["path"].endswith("[split=test, test_size=0.2, seed=7]")


def test_n11_a_split_that_is_not_random_is_the_last_rows(folder: Path) -> None:
    """N11: axolotl shuffles before it takes the last rows, unless shuffle_merged_datasets is off."""
    found, text = imported(
        folder, {**AXOLOTL, "val_set_size": 0.1, "shuffle_merged_datasets": False}
    )
    assert found["data"]["chat"]["path"] == "chat.jsonl@[:90%]" and "random" not in text
    assert found["eval"]["chat_held_out"]["path"] == "chat.jsonl@[90%:]"
    streamed = {**FACTORY, "val_size": 5, "streaming": True, "max_steps": 9}
    found, text = imported(folder, streamed)
    assert "eval" not in found and "val_size: 5  (with streaming, the first records" in text


@pytest.mark.parametrize(
    ("size", "why"),
    [(0, "nothing is held out"), (1.5, "no equivalent for this value")],
)
def test_a_split_without_an_equivalent_is_said(size: float, why: str, folder: Path) -> None:
    found, text = imported(folder, {**AXOLOTL, "val_set_size": size})
    assert "eval" not in found and f"val_set_size: {size}  ({why}" in text


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({**FACTORY, "overwrite_cache": True}, "overwrite_cache"),
        ({**TRL, "overwrite_cache": True}, "overwrite_cache"),
        ({**AXOLOTL, "force_recache": True}, "force_recache"),
    ],
)
def test_n6_what_is_for_one_run_is_not_in_the_recipe(
    config: dict[str, Any], key: str, folder: Path
) -> None:
    """N6: overwrite_cache became refresh: true, so every later command and every rank tokenized again."""
    found, text = imported(folder, config)
    assert "refresh" not in found
    assert f"#   {key}: true  (for one run, and a recipe is for all: `penstock prepare" in text
    ps.load(folder / "r.yaml", output="numpy", progress="none")
    before = sorted(path.stat().st_mtime_ns for path in (folder / "cache").rglob("*.arrow"))
    ps.load(folder / "r.yaml", output="numpy", progress="none")
    after = sorted(path.stat().st_mtime_ns for path in (folder / "cache").rglob("*.arrow"))
    assert before and before == after


ONE_TIME = """resume_from_checkpoint overwrite_output_dir auto_resume_from_checkpoints skip_prepare_dataset
  ignore_data_skip restore_callback_states_from_checkpoint"""


@pytest.mark.parametrize("key", ONE_TIME.split())
def test_n6_flags_of_one_run_change_no_key(key: str, folder: Path) -> None:
    """N6, relatives: flags for resuming or starting over say nothing about the data of a run."""
    for config in (TRL, AXOLOTL, FACTORY):
        plain, _ = imported(folder, config)
        found, text = imported(folder, {**config, key: True})
        assert found == plain and f"#   {key}: true  (" in text


def test_members_of_a_data_set_are_named_whatever_they_hold(folder: Path) -> None:
    odd = {"note": "first\nlast: 1", "field_messages": None, "field": "a", "text_column": "b"}
    _, text = imported(
        folder,
        {**AXOLOTL, "datasets": [{**AXOLOTL["datasets"][0], **odd}], "sample_packing": "false"},
    )
    assert "datasets[0].note: first last: 1  (no equivalent)" in text and "packing: none" in text
    assert "datasets[0].field_messages: none  (not set)" in text
    assert "datasets[0].text_column: b  (datasets[0].field is read)" in text


def test_a_command_line_may_name_a_file_of_settings(folder: Path) -> None:
    (folder / "sft.yaml").write_text("max_length: 5\nseed: 7\n")
    command = "accelerate launch --num_processes 8 -m trl.scripts.sft --config sft.yaml --model_name_or_path tok"
    found, text = imported(
        folder, f"{command} --dataset_name chat.jsonl --max_length 6\n", "train.sh"
    )
    assert (found["max_length"], found["seed"]) == (
        6,
        7,
    ) and "config: sft.yaml  (its settings are here, too)" in text
    found, _ = imported(
        folder,
        "python sft.py sft.yaml model_name_or_path=tok dataset_name=chat.jsonl\n",
        "train.sh",
    )
    assert (found["max_length"], found["tokenizer"]) == (5, "tok")
    (folder / "train.sh").write_text(f"{command.replace('sft.yaml', 'gone.yaml')}\n")
    with pytest.raises(RecipeError, match=r"names the settings gone[.]yaml, which are not here"):
        import_config(folder / "train.sh")


def test_a_recipe_that_does_not_load_is_not_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "theirs.yaml").write_text(yaml.safe_dump({**AXOLOTL, "sequence_len": "long"}))
    before = sorted(folder.iterdir())
    assert run(["import", "theirs.yaml", "-o", "new.yaml"]) == 3
    assert "new.yaml:" in capsys.readouterr().err and sorted(folder.iterdir()) == before
    (folder / "new.yaml").write_text("mine")
    assert run(["import", "theirs.yaml", "-o", "new.yaml", "--force"]) == 3
    assert (folder / "new.yaml").read_text() == "mine"


def test_a_set_of_llama_factory_may_be_trained_and_evaluated(folder: Path) -> None:
    found, _ = imported(folder, {**FACTORY, "dataset": "sh", "eval_dataset": "sh"})
    assert found["eval"]["held_out"] == found["data"]["sh"]


PAIRS = [{"prompt": "one", "chosen": " two", "rejected": " three"}] * 20
JUDGED = [{"prompt": "one", "completion": " two", "label": True}] * 20
PROMPTS = [{"prompt": [{"role": "user", "content": f"Q {n}?"}]} for n in range(20)]
SCRIPT = """
from datasets import load_dataset
from trl import {trainer}Config, {trainer}Trainer

MODEL = "tok"
args = {trainer}Config(output_dir="out", max_steps=-1, num_train_epochs=2, {more})
trainer = {trainer}Trainer(
    model=MODEL,
    args=args,
    train_dataset=load_dataset("json", data_files="rows.jsonl", split="train"),
)
raise SystemExit("nothing of this is run")
"""


@pytest.mark.parametrize(
    ("trainer", "more", "rows", "expected"),
    [
        (
            "DPO",
            "beta=0.1, max_length=64",
            PAIRS,
            {"template": "preference", "on_overlong": "drop", "max_length": 64},
        ),
        (
            "KTO",
            "desirable_weight=1.0",
            JUDGED,
            {"template": "kto", "shuffle": False, "max_length": 1024},
        ),
        ("Reward", "center_rewards_coefficient=0.1", PAIRS, {"template": "preference"}),
        ("GRPO", "num_generations=4", PROMPTS, {"template": "prompt", "on_overlong": "error"}),
        ("SFT", "packing=True", CHAT, {"packing": "best_fit"}),
    ],
)
def test_n11_scripts_of_every_trainer_of_trl_are_read(
    trainer: str, more: str, rows: list[Any], expected: dict[str, Any], folder: Path
) -> None:
    """N11: DPOConfig, KTOConfig and GRPOConfig, the literal load_dataset(…) and model= of a script were not read."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found, text = imported(folder, SCRIPT.format(trainer=trainer, more=more), "train.py")
    assert found["data"] == {"rows": {"path": "rows.jsonl"}}
    assert found.items() >= {"tokenizer": "tok", "epochs": 2, **expected}.items()
    assert "NOT KNOWN" not in text and "computed" not in text
    assert run(["check", str(folder / "r.yaml")]) == 0
    if trainer == "GRPO":
        assert "num_generations: 4  (penstock.Prompts(recipe, repeats=4)" in text
        assert len(ps.Prompts(folder / "r.yaml", repeats=4).take(3)) == 3
    else:
        loader = ps.load(folder / "r.yaml", output="numpy", progress="none")
        assert next(iter(loader))["input_ids"].size


@pytest.mark.parametrize("method", ["dpo", "kto", "grpo"])
def test_n11_a_command_of_another_trainer_than_sft_is_not_read_as_sft(
    method: str, folder: Path
) -> None:
    """N11, relative: `trl dpo …` on a command line was read as SFT."""
    template = {"dpo": "preference", "kto": "kto", "grpo": "prompt"}[method]
    for start in (
        f"trl {method}",
        f"python -m trl.scripts.{method}",
        f"python scripts/{method}.py",
    ):
        line = f"{start} --model_name_or_path tok --dataset_name chat.jsonl --max_length 64\n"
        found, text = imported(folder, line, "run.sh")
        assert found["template"] == template and f"trl {method}: its command" in text
        assert "train_on" not in found


def test_n11_a_yaml_file_that_may_be_of_several_trainers_is_refused(folder: Path) -> None:
    """N11, relative: beta belongs to DPO, KTO and GRPO; their data differs."""
    (folder / "a.yaml").write_text(yaml.safe_dump({**TRL, "beta": 0.1}))
    with pytest.raises(
        RecipeError, match="beta belongs to a trainer of pairs, judged answers or prompts"
    ):
        import_config(folder / "a.yaml")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PAIRS))
    pairs = {**TRL, "beta": 0.1, "dataset_name": "rows.jsonl"}
    assert imported(folder, pairs)[0]["template"] == "preference"
    (folder / "a.py").write_text("DPOConfig(seed=1)\nSFTTrainer(model='x')\n")
    with pytest.raises(RecipeError, match="trains by dpo and by sft; keep the command or the call"):
        import_config(folder / "a.py")


def test_n11_the_options_of_a_launcher_are_not_those_of_trl(folder: Path) -> None:
    """N11: `--config_file zero3.yaml trl sft` took `trl` and `sft` as values, and the launcher's file as the settings."""
    (folder / "zero3.yaml").write_text("distributed_type: DEEPSPEED\nnum_processes: 8\n")
    (folder / "sft.yaml").write_text("max_length: 64\nseed: 7\n")
    rest = "--config sft.yaml --model_name_or_path tok --dataset_name chat.jsonl\n"
    launchers = [
        "accelerate launch --config_file zero3.yaml --num_processes 8 trl sft",
        "accelerate launch --multi_gpu --config_file=zero3.yaml -m trl.scripts.sft",
        "torchrun --nproc_per_node 8 --standalone train/sft.py",
        "python -m torch.distributed.run --nproc_per_node 8 sft.py",
        "CUDA_VISIBLE_DEVICES=0,1 deepspeed --num_gpus 2 sft.py",
    ]
    for launcher in launchers:
        found, text = imported(folder, f"{launcher} {rest}", "run.sh")
        assert (found["max_length"], found["seed"], found["tokenizer"]) == (64, 7, "tok"), launcher
        assert "(the launcher's)" in text and "distributed_type" not in text, text
        assert "template" not in found and found["train_on"] == "all"


def test_n11_what_a_script_does_to_its_data_is_said(folder: Path) -> None:
    """N11, relatives: splits, filters and maps of a script, several datasets, values that it computes."""
    (folder / "chat2.jsonl").write_text((folder / "chat.jsonl").read_text())
    script = """
NAME = "json"
dataset = load_dataset(NAME, data_files="chat.jsonl", split="train", streaming=True)
dataset = dataset.map(lambda record: record).filter(keep)
parts = dataset.train_test_split(test_size=0.1, seed=3)
other = load_dataset("json", data_files="chat2.jsonl")
third = load_dataset(argv[1])
model = AutoModelForCausalLM.from_pretrained("model")
tokenizer = AutoTokenizer.from_pretrained("tok")
SFTTrainer(model=model, args=SFTConfig(max_length=64), train_dataset=parts["train"])
"""
    found, text = imported(folder, script, "train.py")
    assert found["data"]["chat"]["path"].endswith("@[split=train, test_size=0.1, seed=42]")
    assert found["background"] is True and found["tokenizer"] == "tok"
    assert "line 4: dataset.map(lambda record: record)" in text and ".filter(keep)" in text
    assert "load_dataset[1].data_files: chat2.jsonl  (another dataset than the first" in text
    assert "load_dataset[2].path: argv[1]  (computed by the script" in text
    evaluated = """
SFTConfig(max_length=64)
train = load_dataset("org/name", "small", split="train[:10%]")
test = load_dataset("org/name", "small", split="test")
"""
    found, _ = imported(folder, evaluated, "train.py")
    shared = {"path": "org/name", "config": "small"}
    assert found["data"] == {"name": {**shared, "split": "train[:10%]"}}
    assert found["eval"] == {"held_out": {**shared, "split": "test"}}
    last_rows = "SFTConfig(seed=1)\nd.train_test_split(0.1, shuffle=False)\n"
    found, text = imported(folder, last_rows, "train.py")
    assert "eval" not in found and "(the last records, not a random choice" in text


LMMS = """
trainer_type: fsdp2_trainer
dataset_config:
  extra_kwargs: {}
  dataset_type: vision
  dataset_format: yaml
  datasets:
    - path: chat.jsonl
      data_folder: ""
      data_type: jsonl
  processor_config: {processor_name: tok, processor_type: qwen2}
  shuffle: true
  data_seed: 11
  eval_dataset_path: null
  object_storage: none
  packing: true
  packing_strategy: first_fit
  packing_length: 256
  filter_overlong: true
  max_length: null
  video_backend: qwen_vl_utils
model_config: {load_from_pretrained_path: tok}
trainer_args:
  per_device_train_batch_size: 1
  num_train_epochs: 2
  seed: 42
  data_seed: null
  group_by_length: false
  dataloader_num_workers: 0
  learning_rate: 1.0e-06
  use_rmpad: true
  fsdp_config: {transformer_layer_cls_to_wrap: [X]}
"""


def test_l2_the_documented_configuration_of_lmms_engine_is_read(folder: Path) -> None:
    """L2: its keys lie under dataset_config, and had to be moved to the top by hand."""
    found, text = imported(folder, LMMS, "lmms.yaml")
    expected = {
        "tokenizer": "tok",
        "max_length": 256,
        "packing": "next_fit",
        "on_overlong": "drop",
        "batch_size": 1,
        "epochs": 2,
        "seed": 11,
        "shuffle": True,
        "data": {"chat": {"path": "chat.jsonl", "format": "jsonl"}},
    }
    assert found.items() >= expected.items() and "processor" not in found
    assert "video_backend: qwen_vl_utils  (set it in the processor's own files" in text
    assert "model_config: " in text and "NOT KNOWN" not in text
    assert run(["check", str(folder / "r.yaml")]) == 0
    as_list = "- type: trainer\n  config:\n" + LMMS.strip().replace("\n", "\n    ")
    older = as_list.replace("config:\ntrainer", "config:\n    trainer")
    assert imported(folder, older, "older.yaml")[0] == found
    inside = LMMS.replace("vision\n", "vision_iterable\n").replace("qwen2}", "qwen2_5_vl}")
    found, _ = imported(folder, inside, "lmms.yaml")
    assert found.items() >= {"background": True, "shuffle_window": 16, "processor": "tok"}.items()
    (folder / "direct.yaml").write_text(LMMS)
    with pytest.raises(RecipeError, match="a configuration of LMMS-Engine: penstock import FILE"):
        ps.Recipe.read(folder / "direct.yaml")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("fps: 2", {"fps": 2}),
        ("fps: 2, frame_num: 8, video_max_frames: 32", {"fps": 2, "max_frames": 32}),
        ("video_sampling_strategy: frame_num, fps: 2, frame_num: 8", {"num_frames": 8}),
        ("video_sampling_strategy: frame_num", {"num_frames": 64}),
        (
            "video_max_pixels: 50176, video_min_pixels: 784",
            {"max_pixels": 50176, "min_pixels": 784},
        ),
    ],
)
def test_frames_of_videos_of_lmms_engine_are_video_options(
    written: str, expected: dict[str, int], folder: Path
) -> None:
    text = LMMS.replace("qwen2}", "qwen2_5_vl}")
    lines = "".join(f"  {each}\n" for each in written.split(", "))
    found, _ = imported(
        folder, text.replace("dataset_config:\n", f"dataset_config:\n{lines}"), "v.yaml"
    )
    assert found["video_options"] == expected
    assert "video_options" not in imported(folder, text, "none.yaml")[0]


def test_a_bucket_of_lmms_engine_is_the_place_of_its_media(folder: Path) -> None:
    text = LMMS.replace("qwen2}", "qwen2_5_vl}")
    stored = "object_storage: gcs\n  bucket_name: pictures"
    inside = text.replace("object_storage: none", stored)
    found, _ = imported(
        folder, inside.replace('data_folder: ""', "data_folder: a/b/"), "bucket.yaml"
    )
    (data,) = found["data"].values()
    assert data["media_root"] == "gs://pictures/a/b"
    found, _ = imported(folder, inside.replace("gcs", "azure"), "azure.yaml")
    (data,) = found["data"].values()
    assert data["media_root"] == "az://pictures"
    (folder / "bad.yaml").write_text(text.replace("storage: none", "storage: gcs"))
    with pytest.raises(RecipeError, match="object_storage is gcs and bucket_name none"):
        import_config(folder / "bad.yaml")


def test_the_collator_for_diffusion_models_of_lmms_engine_is_an_objective(folder: Path) -> None:
    text = LMMS.replace("extra_kwargs: {}", "extra_kwargs: {collator_type: dllm}", 1)
    found, _ = imported(folder, text, "lmms.yaml")
    assert found["objective"] == {
        "name": "masked_diffusion",
        "p_min": 0.01,
        "p_max": 0.99,
        "mask_special": False,
    }
    odd = LMMS.replace("extra_kwargs: {}", "extra_kwargs: {collator_type: other}", 1)
    (folder / "lmms.yaml").write_text(odd)
    with pytest.raises(RecipeError, match="collator_type is other, expected default or dllm"):
        import_config(folder / "lmms.yaml")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("vision", "rae", "dataset_type: rae has no equivalent"),
        ("first_fit", "balanced", "packing_strategy is balanced, expected one of first_fit"),
        ("max_length: null", "max_length: 99", "max_length is 99 and packing_length 256"),
        ("processor_name: tok, ", "", "expected a mapping with processor_name"),
    ],
)
def test_l2_settings_of_lmms_engine_without_an_equivalent_are_refused(
    old: str, new: str, said: str, folder: Path
) -> None:
    (folder / "lmms.yaml").write_text(LMMS.replace(old, new, 1))
    with pytest.raises(RecipeError, match=said):
        import_config(folder / "lmms.yaml")


# What trl itself makes of records, with the settings that were imported.

CHAT_PAIRS = [
    {
        "prompt": [*CHAT[row]["messages"], CHAT[row]["messages"][0]],
        "completion": [CHAT[row]["messages"][1]],
    }
    for row in range(20)
]
OF_TRL: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "chat": (
        CHAT,
        [
            {},
            {"max_length": 9},
            {"assistant_only_loss": True},
            {"completion_only_loss": True},
            {"max_length": None},
        ],
    ),
    "text": ([{"text": "the fox " * (row + 1)} for row in range(20)], [{}, {"max_length": 9}]),
    "body": (
        [{"body": "the fox " * (row + 1)} for row in range(20)],
        [{"dataset_text_field": "body"}],
    ),
    "pairs": (
        [{"prompt": f"one {row}", "completion": " two"} for row in range(20)],
        [{}, {"completion_only_loss": False}],
    ),
    "chat_pairs": (
        CHAT_PAIRS,
        [
            {},
            {"assistant_only_loss": True},
            {"assistant_only_loss": True, "completion_only_loss": False},
        ],
    ),
}


def prepared_by_trl(
    rows: list[dict[str, Any]], config: dict[str, Any]
) -> list[tuple[list[int], list[int]]]:
    """Return ids and labels as SFTTrainer prepares them; no model is needed for that."""
    trl = pytest.importorskip("trl")
    from datasets import Dataset
    from transformers import AutoTokenizer

    args = trl.SFTConfig(output_dir="unused", use_cpu=True, bf16=False, report_to=[], **config)
    tokenizer = AutoTokenizer.from_pretrained("tok")
    tokenizer.eos_token = args.eos_token or tokenizer.eos_token
    is_pair = {"prompt", "completion"} <= rows[0].keys()
    is_cut = is_pair if args.completion_only_loss is None else args.completion_only_loss
    trainer = types.SimpleNamespace(
        _tokenizer=tokenizer, chat_template=None, completion_only_loss=is_cut
    )
    made = trl.SFTTrainer._prepare_dataset(
        trainer, Dataset.from_list(rows), tokenizer, args, False, None, "train"
    )
    return [
        (row["input_ids"], [-100, *row["labels"][1:]]) for row in made
    ]  # the first token is never a target


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated")  # trl's own default
@pytest.mark.parametrize("name", OF_TRL)
def test_an_imported_recipe_trains_the_tokens_that_trl_trains(name: str, folder: Path) -> None:
    rows, configs = OF_TRL[name]
    text = "{{ m.content }}<|endoftext|>"
    tagged = f"{{% if m.role == 'assistant' %}}{{% generation %}}{text}{{% endgeneration %}}{{% else %}}{text}{{% endif %}}"
    template = CHATML.replace(text, tagged)
    (folder / "tok" / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<|endoftext|>",
                "chat_template": template,
            }
        )
    )
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for config in configs:
        imported(folder, {**TRL, "dataset_name": "rows.jsonl", **config})
        loader = ps.load(
            folder / "r.yaml",
            output="numpy",
            progress="none",
            batch_size=1,
            epochs=1,
            shuffle=False,
        )
        found = [(batch["input_ids"][0].tolist(), batch["labels"][0].tolist()) for batch in loader]
        assert found == prepared_by_trl(rows, config), config
