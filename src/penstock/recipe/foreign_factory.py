"""What the settings of LLaMA-Factory mean as a recipe, with the entries of its dataset_info.json."""

import json
from pathlib import Path
from typing import Any

from penstock.errors import RecipeError
from penstock.recipe.foreign import Imported, Settings
from penstock.recipe.foreign_tools import of_training_arguments

_FILES = "write eval: with separate files"
_NONE = {
    "template": "a template of LLaMA-Factory; the tokenizer's own is used: compare, or write chat_template: with a file",
    **dict.fromkeys(("val_size", "eval_on_each_dataset"), _FILES),
    **dict.fromkeys(("ignore_pad_token_for_loss", "data_shared_file_system", "preprocessing_batch_size"), "not needed"),
    **dict.fromkeys(("default_system", "tool_format"), "no equivalent"),
}


def llama_factory(made: Imported, *, dataset_info: Path | None = None) -> None:
    """The YAML of LLaMA-Factory, and the entries of its dataset_info.json."""
    stage = made.take("stage", "sft")
    if stage not in ("sft", "pt", "dpo", "rm", "kto"):
        raise RecipeError(f"{made.file}: stage is {stage!r}, expected sft, pt, dpo, rm or kto; its data has no recipe")
    made.same("tokenizer", "model_name_or_path", note="its tokenizer, or write a local folder")
    made.leave("stage", "the trainer's; it decides the template of each data set")
    info = _dataset_info(made, dataset_info)
    weights = _listed(made.take("interleave_probs"))
    names = _listed(made.take("dataset"))
    cut = made.take("max_samples")
    if weights and len(weights) != len(names):
        raise RecipeError(f"{made.file}: {len(weights)} interleave_probs for {len(names)} data sets, expected one each")
    for number, name in enumerate(names):
        weight: Settings = {"weight": (float(weights[number]), f"interleave_probs[{number}]")} if weights else {}
        _factory_set(made, name, info, stage, weight, cut)
    for name in _listed(made.take("eval_dataset")):
        _factory_set(made, name, info, stage, {}, cut, of_eval=True)
    mixing = made.take("mix_strategy", "concat")
    if weights:
        made.put("stop", "all" if "over" in mixing else "first", "mix_strategy", mixing)
    else:
        made.leave("mix_strategy", "every sample comes once; weight: in each data set mixes")
    _factory_rows(made, stage)
    of_training_arguments(made)
    made.same("num_proc", "preprocessing_num_workers")
    made.same(
        "refresh", "overwrite_cache", note="rarely needed: names in the cache cover tokenizer, template and content"
    )
    made.same("cache_dir", "tokenized_path", note="a cache of any settings, not one saved data set")
    made.same("media_root", "media_dir")
    if made.take("streaming", False):
        made.put("background", True, "streaming", True, "rows still have numbers")
        made.put("window", 16, "streaming", True, "that many shards are shuffled together")
    for key in ("enable_thinking", "preserve_thinking"):
        if (value := made.take(key)) is not None:
            kept = made.top.get("template_kwargs", ({}, ""))[0]
            made.put(
                "template_kwargs", {**kept, key: value}, key, value, "a variable of the chat template, if it has one"
            )
    for key, why in _NONE.items():
        made.leave(key, why)


def _factory_rows(made: Imported, stage: str) -> None:
    """Length, packing and loss."""
    length = made.take("cutoff_len", 2048)
    made.put("max_length", length, "cutoff_len", length)
    neat, packed = made.take("neat_packing", False), made.take("packing", stage == "pt")
    if stage in ("sft", "pt") and (neat or packed):
        key = "neat_packing" if neat else "packing"
        note = "samples stay apart" + ("" if neat else ", which packing alone does not do there")
        made.put("packing", "concat" if stage == "pt" else "best_fit", key, True, note)
        made.put("overflow", "split" if stage == "pt" else "drop", key, True)
    else:
        made.put("packing", "none", "packing", False, "best_fit trains the same samples in fewer rows")
        made.put(
            "overflow",
            "truncate",
            "cutoff_len",
            length,
            "the start is kept; there, prompt and answer are cut in proportion",
        )
    if made.take("train_on_prompt", False):
        made.put("train_on", "all", "train_on_prompt", True)
    elif made.take("mask_history", False):
        made.put("train_on", "last", "mask_history", True)
    elif stage == "sft":
        made.put("train_on", "assistant", "train_on_prompt", False)


def _listed(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [each.strip() for each in value.split(",") if each.strip()]
    return [] if value is None else value if isinstance(value, list) else [value]


def _dataset_info(made: Imported, path: Path | None) -> dict[str, Any]:
    """Return the entries of dataset_info.json; paths in it are relative to its folder."""
    folder = made.take("dataset_dir", "data")
    path = path or Path(str(made.place(folder))) / "dataset_info.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RecipeError(f"{path}: cannot be read: {reason}; name the file with --dataset-info") from error
    if not isinstance(found, dict):
        raise RecipeError(f"{path}: a JSON {type(found).__name__}, expected entries by name")
    made.leave("dataset_dir", "paths are written out")
    return {"": str(path.parent), **found}


_COLUMNS = {
    "alpaca": {"prompt": "instruction_key", "query": "input_key", "response": "output_key", "history": "history_key"},
    "sharegpt": {"messages": "messages_key"},
}


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
    entry = info.get(name)
    if not isinstance(entry, dict):
        raise RecipeError(
            f"{made.file}: the data set {name!r} is not in dataset_info.json, expected one of {', '.join(list(info)[1:9])}"
        )
    entry, was, settings = dict(entry), f"dataset_info.json: {name}", dict(settings)
    kind, is_pair = entry.pop("formatting", "alpaca"), entry.pop("ranking", False)
    file = next(
        (entry.pop(key) for key in ("file_name", "hf_hub_url", "ms_hub_url", "script_url") if key in entry), None
    )
    if file is None:
        raise RecipeError(f"{was} has no file_name, expected the name of a file or of a data set on the hub")
    path = str(Path(info[""]) / str(file)) if (Path(info[""]) / str(file)).exists() else str(file)
    if kind not in ("alpaca", "sharegpt", "openai"):
        raise RecipeError(f"{was}: formatting is {kind!r}, expected alpaca, sharegpt or openai")
    template = {"pt": "text", "dpo": "preference", "rm": "preference", "kto": "kto"}.get(stage)
    template = template or {"openai": "messages"}.get(kind, kind)
    settings["template"] = (template, f"{was}.formatting: {kind}" + ("; ranking" if is_pair else ""))
    columns = {**_COLUMNS["sharegpt" if kind != "alpaca" else kind], "system": "system_key", "tools": "tool_key",
               "chosen": "chosen_key", "rejected": "rejected_key", "kto_tag": "desirable_key"}  # fmt: skip
    if stage == "pt":
        columns = {"prompt": "key"}
    for theirs, value in (entry.pop("columns", None) or {}).items():
        if theirs in columns and value is not None:
            settings[columns[theirs]] = (value, f"{was}.columns.{theirs}")
        else:
            made.left.append(
                f"{was}.columns.{theirs}: {value}  (no equivalent: media are found by the usual names of columns)"
            )
    _factory_tags(made, entry.pop("tags", None) or {}, settings, was)
    for theirs, ours in (("split", "split"), ("subset", "config"), ("hf_revision", "revision")):
        if (value := entry.pop(theirs, None)) is not None:
            settings[ours] = (value, f"{was}.{theirs}")
    most = entry.pop("num_samples", None) or cut
    where = f"{path}@[:{most}]" if most else path
    for key, value in entry.items():
        made.left.append(f"{was}.{key}: {value}  (no equivalent)")
    note = f"; the first {most}, there a random choice" if most else ""
    made.add(where, settings, f"{was}.file_name{note}", name=None if of_eval else name, of_eval=of_eval)


def _factory_tags(made: Imported, tags: dict[str, Any], settings: Settings, was: str) -> None:
    roles: dict[str, list[Any]] = {}
    for theirs, value in tags.items():
        role = {
            "user_tag": "user",
            "assistant_tag": "assistant",
            "system_tag": "system",
            "observation_tag": "tool",
        }.get(theirs)
        if theirs in ("role_tag", "content_tag"):
            settings[theirs.replace("_tag", "_key")] = (value, f"{was}.tags.{theirs}")
        elif role is not None:
            roles[role] = [value]
        else:
            made.left.append(
                f"{was}.tags.{theirs}: {value}  (no equivalent: calls of tools are found by their usual names)"
            )
    if roles:
        settings["role_map"] = (roles, f"{was}.tags")
