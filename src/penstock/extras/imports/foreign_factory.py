"""What the settings of LLaMA-Factory mean as a recipe, with the entries of its dataset_info.json."""

import json
from pathlib import Path
from typing import Any

from penstock.errors import RecipeError
from penstock.extras.imports.foreign import Imported, Settings, as_list, random_part
from penstock.extras.imports.foreign_tools import of_training_arguments, streamed

_SEED = 42  # of transformers
_NONE = {
    "stage": "the trainer's; it decides the template of each dataset",
    "template": "a template of LLaMA-Factory; the tokenizer's own is used: compare, or write chat_template: with a file",
    "eval_on_each_dataset": "each eval set is loaded by its name",
    **dict.fromkeys(
        ("ignore_pad_token_for_loss", "data_shared_file_system", "preprocessing_batch_size"),
        "not needed",
    ),
    **dict.fromkeys(("default_system", "tool_format"), "no equivalent"),
    **dict.fromkeys(
        ("use_fast_tokenizer", "split_special_tokens", "add_tokens", "add_special_tokens"),
        "the tokenizer's: save it with these settings, and name its folder",
    ),
    **dict.fromkeys(("new_special_tokens_config", "init_special_tokens"), "the tokenizer's"),
    **dict.fromkeys(
        ("image_do_pan_and_scan", "crop_to_patches", "use_audio_in_video", "audio_sampling_rate"),
        "set it in the processor's own files, and write processor: with their folder",
    ),
}
_STAGES = {
    "sft": None,
    "pt": "text",
    "dpo": "preference",
    "rm": "preference",
    "kto": "kto",
}  # the template that each needs
_PLACES = ("file_name", "hf_hub_url", "ms_hub_url", "script_url")
_ALL = {"system": "system_key", "tools": "tool_key"}
_ANSWERS = {"chosen": "chosen_key", "rejected": "rejected_key", "kto_tag": "desirable_key"}
_COLUMNS = {
    "alpaca": {
        "prompt": "instruction_key",
        "query": "input_key",
        "response": "output_key",
        "history": "history_key",
        **_ALL,
    },
    "sharegpt": {"messages": "messages_key", **_ALL},
    "text": {"prompt": "key"},
    "preference": {"messages": "input_key", "prompt": "input_key", **_ANSWERS, **_ALL},
    "kto": {
        "messages": "input_key",
        "prompt": "input_key",
        "response": "output_key",
        **_ANSWERS,
        **_ALL,
    },
}
_ROLES = {
    "user_tag": "user",
    "assistant_tag": "assistant",
    "system_tag": "system",
    "observation_tag": "tool",
    "function_tag": "function_call",
}


def llama_factory(made: Imported, *, dataset_info: Path | None = None) -> None:
    """The YAML of LLaMA-Factory, and the entries of its dataset_info.json."""
    stage = made.take("stage", "sft")
    if stage not in _STAGES:
        raise RecipeError(
            f"{made.file}: stage is {stage!r}, expected sft, pt, dpo, rm or kto; its data has no recipe"
        )
    made.same("tokenizer", "model_name_or_path", note="its tokenizer, or write a local folder")
    info = _dataset_info(made, dataset_info)
    weights = _listed(made.take("interleave_probs"))
    names = _listed(made.take("dataset"))
    cut = made.take("max_samples")
    if weights and len(weights) != len(names):
        raise RecipeError(
            f"{made.file}: {len(weights)} interleave_probs for {len(names)} datasets, expected one each"
        )
    for number, name in enumerate(names):
        weight: Settings = (
            {"weight": (float(weights[number]), f"interleave_probs[{number}]")} if weights else {}
        )
        _factory_set(made, name, info, stage, weight, cut)
    for name in _listed(made.take("eval_dataset")):
        _factory_set(made, name, info, stage, {}, cut, of_eval=True)
    mixing = made.take("mix_strategy", "concat")
    if weights:
        made.put(
            "stopping_strategy",
            "all_exhausted" if "over" in mixing else "first_exhausted",
            "mix_strategy",
            mixing,
        )
    else:
        made.leave("mix_strategy", "every sample comes once; weight: in each dataset mixes")
    _factory_rows(made, stage)
    of_training_arguments(made)
    if made.take("disable_shuffling"):
        made.put("shuffle", False, "disable_shuffling", True)
    made.same("cache_dir", "tokenized_path", note="a cache of any settings, not one saved dataset")
    streamed(made, "streaming")
    kwargs = {
        key: made.take(key)
        for key in ("enable_thinking", "preserve_thinking")
        if made.take(key) is not None
    }
    for key, value in kwargs.items():
        made.put(
            "chat_template_kwargs",
            kwargs,
            key,
            value,
            "variables of the chat template, if it has them",
        )
    if made.top.get("background"):
        made.leave(
            "val_size",
            "with streaming, the first records: write eval: path@[:1000] and data: path@[1000:]",
        )
    else:
        size = made.take("val_size")
        is_whole = isinstance(size, float) and size > 1 and size == int(size)  # 100.0 are 100 rows
        made.given["val_size"] = int(size) if is_whole else size
        made.hold_out("val_size", seed=made.top["seed"][0])
    made.leave_all(_NONE)


def _factory_rows(made: Imported, stage: str) -> None:
    """Length, packing and loss."""
    length = made.same("max_length", "cutoff_len", 2048)
    neat = made.take("neat_packing", False)
    packed = made.take("packing", stage == "pt")
    if stage in ("sft", "pt") and (neat or packed):
        key = "neat_packing" if neat else "packing"
        note = "samples stay apart" + ("" if neat else ", which packing alone does not do there")
        made.put("packing", "concat" if stage == "pt" else "best_fit", key, True, note)
        made.put("on_overlong", "split" if stage == "pt" else "drop", key, True)
    elif stage in ("sft", "pt"):
        made.put(
            "packing", "none", "packing", False, "best_fit trains the same samples in fewer rows"
        )
        note = "the start is kept; there, prompt and answer are cut in proportion"
        made.put("on_overlong", "truncate", "cutoff_len", length, note)
    else:
        made.put("packing", "none", "packing", False, "pairs are not packed there")
        made.put(
            "on_overlong",
            "drop",
            "cutoff_len",
            length,
            "pairs are never cut here; there, prompt and answers are",
        )
    if made.take("train_on_prompt", False):
        made.put("train_on", "all", "train_on_prompt", True)
    elif made.take("mask_history", False):
        made.put("train_on", "last", "mask_history", True)
    elif stage == "sft":
        made.put("train_on", "assistant", "train_on_prompt", False)


def _listed(value: Any) -> list[Any]:
    return (
        [each.strip() for each in value.split(",") if each.strip()]
        if isinstance(value, str)
        else as_list(value)
    )


def _dataset_info(made: Imported, path: Path | None) -> dict[str, Any]:
    """Return the entries of dataset_info.json; paths in it are relative to its folder."""
    folder = made.take("dataset_dir", "data")
    path = path or Path(str(made.place(folder))) / "dataset_info.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RecipeError(
            f"{path}: cannot be read: {reason}; name the file with --dataset-info"
        ) from error
    if not isinstance(found, dict):
        raise RecipeError(f"{path}: a JSON {type(found).__name__}, expected entries by name")
    made.leave("dataset_dir", "paths are written out")
    return {"": str(path.parent), **found}


def _factory_set(
    made: Imported,
    name: str,
    info: dict[str, Any],
    stage: str,
    settings: Settings,
    cut: int | None,
    *,
    of_eval: bool = False,
) -> None:
    if not isinstance(info.get(name), dict):
        known = ", ".join(list(info)[1:9])
        raise RecipeError(
            f"{made.file}: the dataset {name!r} is not in dataset_info.json, expected one of {known}"
        )
    entry = dict(info[name])
    was = f"dataset_info.json: {name}"
    kind = entry.pop("formatting", "alpaca")
    is_pair = entry.pop("ranking", False)
    place = next((key for key in _PLACES if key in entry), None)
    if place is None:
        raise RecipeError(
            f"{was} has no file_name, expected the name of a file or of a dataset on the hub"
        )
    if kind not in ("alpaca", "sharegpt", "openai"):
        raise RecipeError(f"{was}: formatting is {kind!r}, expected alpaca, sharegpt or openai")
    file = str(entry.pop(place))
    path = str(Path(info[""]) / file) if (Path(info[""]) / file).exists() else file
    template = _STAGES[stage]
    columns = _COLUMNS[template or ("alpaca" if kind == "alpaca" else "sharegpt")]
    template = template or {"openai": "messages"}.get(kind, kind)
    settings = {
        **settings,
        "template": (template, f"{was}.formatting: {kind}" + ("; ranking" if is_pair else "")),
    }
    given = dict(entry.pop("columns", None) or {})
    settings |= made.settings_of(given, columns, f"{was}.columns")
    why = "no equivalent: media are found by the usual names of columns; join other columns with source.map"
    made.leave_part(given, f"{was}.columns", why)
    _factory_tags(
        made,
        dict(entry.pop("tags", None) or {}),
        settings,
        f"{was}.tags",
        has_names=template in ("sharegpt", "messages"),
    )
    settings |= made.settings_of(
        entry, {"split": "split", "subset": "config", "hf_revision": "revision"}, was
    )
    chosen = entry.pop("num_samples", None)
    made.leave_part(entry, was, "no equivalent")
    note = ""
    rows = ""
    if chosen:
        note += f"; num_samples: {chosen}: as many records by another random choice"
        rows = random_part("test", chosen, made.take("seed", _SEED))
    if cut:
        note += f"; max_samples: the first {cut}"
        rows = f"{rows}@[:{cut}]" if rows else f"[:{cut}]"
    made.add(
        path,
        settings,
        f"{was}.{place}{note}",
        name=None if of_eval else name,
        of_eval=of_eval,
        cut=rows,
    )


def _factory_tags(
    made: Imported, tags: dict[str, Any], settings: Settings, was: str, *, has_names: bool
) -> None:
    """Take the names of roles; has_names: the template has options for the names of role and content, others find them."""
    if has_names:
        settings |= made.settings_of(
            tags, {"role_tag": "role_key", "content_tag": "content_key"}, was
        )
    if roles := {role: [tags.pop(tag)] for tag, role in _ROLES.items() if tag in tags}:
        settings["role_map"] = (roles, was)
    made.leave_part(
        tags,
        was,
        "no equivalent: calls of tools, roles and contents are found by their usual names",
    )
