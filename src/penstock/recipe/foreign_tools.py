"""What the settings of trl and axolotl mean as a recipe; foreign_factory.py has those of LLaMA-Factory."""

from pathlib import Path
from typing import Any

from penstock.errors import PenstockError, RecipeError
from penstock.recipe.foreign import Imported, Settings

_ORDER = "the order is another one"
_SEED = 42  # of transformers and axolotl
_TRL_PACKING = {"bfd": ("best_fit", "truncate"), "bfd_split": ("best_fit", "split"), "wrapped": ("concat", "split")}
_AXOLOTL_TYPES = {
    "chat_template": "messages", "sharegpt": "sharegpt", "alpaca": "alpaca", "completion": "text", "pretrain": "text",
    "input_output": "segments",
}  # fmt: skip


_PACKING = """eval_sample_packing sample_packing_group_size sample_packing_bin_size sample_packing_sequentially multipack_real_batches
  pretrain_multipack_attn batch_flattening curriculum_sampling"""
_TOKENS = "the tokenizer's: save it with these tokens, and name its folder"
_NONE_OF_AXOLOTL = {
    **dict.fromkeys(
        _PACKING.split(), "no equivalent: packing: and block: decide; an eval set may have its own packing:"
    ),
    **dict.fromkeys(("special_tokens", "tokens"), _TOKENS),
    "min_sample_len": "no equivalent: filter in Python, source.filter(…)",
    "dataset_exact_deduplication": "no equivalent; `penstock check` counts duplicates",
    "skip_prepare_dataset": "data is always prepared, once",
}


def _bare(value: Any) -> bool:
    """Whether a name is that of a format, as `load_dataset("json", data_files=…)` has it."""
    return value in ("json", "csv", "parquet", "text", "arrow", "webdataset", "imagefolder")


def of_training_arguments(made: Imported) -> None:
    """Settings of transformers' TrainingArguments."""
    made.same("batch_size", "per_device_train_batch_size", 8, "rows of a rank; a row may hold several samples")
    made.leave("gradient_accumulation_steps", "the trainer's: it takes that many batches for a step")
    made.epochs("num_train_epochs", 3.0)
    seed = made.take("seed", _SEED)
    key = "data_seed" if made.take("data_seed") is not None else "seed"
    made.put("seed", made.take(key, seed), key, made.take(key, seed), _ORDER)
    sampling = made.take("train_sampling_strategy", "random")
    if sampling == "sequential":
        made.put("shuffle", False, "train_sampling_strategy", sampling)
    elif (sampling == "group_by_length" or made.take("group_by_length")) and made.top["packing"][0] == "none":
        made.put("packing", "group_64", "group_by_length", True, "samples of one length together, one in a row")
    is_cut = made.take("dataloader_drop_last", False)
    note = "the last step is filled up with rows without loss"
    made.put("tail", "drop" if is_cut else "pad", "dataloader_drop_last", is_cut, "" if is_cut else note)
    made.same("workers", "dataloader_num_workers", note="0 is enough: batches are made ahead by a thread")
    made.same("prefetch", "dataloader_prefetch_factor")
    made.same("pin_memory", "dataloader_pin_memory")
    for key in ("persistent_workers", "multiprocessing_context", "in_order"):
        made.leave(f"dataloader_{key}", "not needed: batches have one order whatever makes them")
    made.leave("ignore_data_skip", "not needed: a resumed run goes on at its position and reads nothing twice")


def trl(made: Imported) -> None:
    """SFTConfig, ScriptArguments, ModelConfig and DatasetMixtureConfig of trl 1.16."""
    made.same("tokenizer", "model_name_or_path", note="its tokenizer, or write a local folder")
    _trl_data(made)
    length = made.take("max_length", 1024)
    made.put("max_length", length, "max_length", length)
    strategy = made.take("packing_strategy", "bfd")
    if strategy not in _TRL_PACKING:
        raise RecipeError(f"{made.file}: packing_strategy is {strategy!r}, expected one of {', '.join(_TRL_PACKING)}")
    mode = made.take("truncation_mode", "keep_start")
    if made.take("packing", False):
        packing, overflow = _TRL_PACKING[strategy]
        made.put("packing", packing, "packing_strategy", strategy, "of 65,536 samples at a time, not 1,000")
        made.put("overflow", overflow, "packing_strategy", strategy)
        made.put("padding_free", True, "packing", True, "trl packs without padding")
    else:
        made.put("packing", "none", "packing", False, "best_fit trains the same samples in fewer rows")
        made.leave("packing_strategy", "packing is off")
        kept = mode == "keep_start"
        note = "" if kept else "no equivalent: overlong samples are dropped and counted; trl keeps their ends"
        made.put("overflow", "truncate" if kept else "drop", "truncation_mode", mode, note)
    if made.take("padding_free", False):
        made.same("padding_free", "padding_free")
    _trl_loss(made)
    of_training_arguments(made)
    if made.take("shuffle_dataset", False):
        made.top.setdefault("shuffle", (True, made.was("shuffle_dataset", True)))
    multiple = made.take("pad_to_multiple_of")
    if isinstance(multiple, int):
        made.put("pad_to", multiple, "pad_to_multiple_of", multiple)
    else:
        made.leave("pad_to_multiple_of", "auto decides by the model; write pad_to: if it needs one")
    made.same("num_proc", "dataset_num_proc")
    made.same("chat_template", "chat_template_path")
    made.same("key", "dataset_text_field")
    made.same("eos", "eos_token")
    made.leave("eval_packing", "an eval set may have its own packing:, padding_free: and overflow:")
    made.leave("pad_token", "write pad_id: with its number; padding is never trained")
    made.leave("dataset_kwargs", "data is always prepared; records with input_ids are taken as they are")


def _trl_data(made: Imported) -> None:
    train, test = made.take("dataset_train_split", "train"), made.take("dataset_test_split", "test")
    is_evaluated = made.given.get("eval_strategy", "no") not in ("no", False, None)
    name, mixture = made.take("dataset_name"), made.listed("datasets")
    if made.take("dataset_streaming", made.take("streaming", False)):
        made.put("background", True, "streaming", True, "rows still have numbers")
        made.put("window", 16, "streaming", True, "that many shards are shuffled together")
    made.leave(
        "test_split_size", "split in Python: source.train_test_split(test_size=0.1); or write eval: with separate files"
    )
    settings: Settings = {}
    if (config := made.take("dataset_config")) is not None:
        settings["config"] = (config, made.was("dataset_config", config))
    if name is not None:
        is_here = Path(made.place(name)).is_file()
        splits = {} if is_here else {"split": (train, made.was("dataset_train_split", train))}
        made.add(name, {**settings, **splits}, made.was("dataset_name", name))
        if is_evaluated and not is_here:
            was = made.was("dataset_test_split", test)
            made.add(name, {**settings, "split": (test, was)}, made.was("dataset_name", name), of_eval=True)
    if not made.evals:
        made.leave("dataset_test_split", "nothing is evaluated, or the data is one file")
    for number, each in enumerate(mixture):
        if not isinstance(each, dict) or "path" not in each:
            raise RecipeError(f"{made.file}: datasets[{number}] is {str(each)[:60]}, expected a mapping with a path")
        _trl_part(made, dict(each), f"datasets[{number}]")


def _trl_part(made: Imported, part: dict[str, Any], was: str) -> None:
    path, files = part.pop("path"), part.pop("data_files", None)
    settings: Settings = {}
    if _bare(path) and files is not None:
        path, files = files, None
    elif files is not None:
        settings["data_files"] = (files, f"{was}.data_files")
    for theirs, ours in (("name", "config"), ("split", "split"), ("fraction", "weight")):
        if (value := part.pop(theirs, None)) is not None:
            note = "; an exact share: trl keeps the first rows of each" if ours == "weight" else ""
            settings[ours] = (value, f"{was}.{theirs}{note}")
    for key, value in part.items():
        made.left.append(
            f"{was}.{key}: {value}  (no equivalent: name files in path:; columns that a template does not read are left)"
        )
    made.add(path, settings, f"{was}.path")


def _trl_loss(made: Imported) -> None:
    """What is trained: assistant turns, completions, or everything."""
    completion, assistant = made.take("completion_only_loss"), made.take("assistant_only_loss", False)
    if assistant:
        made.put(
            "train_on",
            "assistant",
            "assistant_only_loss",
            True,
            "turns are found in the rendered text, tags are not needed",
        )
        made.leave("completion_only_loss", "assistant_only_loss decides")
    elif completion is not None:
        made.put("train_on", "completion" if completion else "all", "completion_only_loss", completion)
        made.leave("assistant_only_loss", "completion_only_loss decides")
    else:
        is_pair = _has_completion(made)
        note = (
            "records have a prompt and a completion"
            if is_pair
            else "everything, prompts too; train_on: assistant is usual"
        )
        if is_pair is None:
            note += "; if records have a prompt and a completion, trl trains the completion: write train_on: completion"
        made.put("train_on", "completion" if is_pair else "all", "completion_only_loss", "null", note)
        made.leave("assistant_only_loss", "false")


def _has_completion(made: Imported) -> bool | None:
    """Whether the first record has a prompt and a completion, as trl decides it; None if the data cannot be read here."""
    from penstock.api import open as open_data

    found = [settings["path"][0] for settings in made.sets.values()]
    try:
        records = [open_data(path)[0] for path in found if isinstance(path, str) and Path(path).exists()]
    except (PenstockError, IndexError):
        return None
    return (
        all("prompt" in each and "completion" in each for each in records)
        if records and len(records) == len(found)
        else None
    )


def _as_list(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


def axolotl(made: Imported) -> None:
    """The YAML of axolotl."""
    made.same("tokenizer", "tokenizer_config" if made.take("tokenizer_config") else "base_model")
    if made.take("tokenizer_config"):
        made.leave("base_model", "the trainer's; tokenizer_config names the tokenizer")
    for number, each in enumerate(made.listed("datasets")):
        _axolotl_set(made, each, f"datasets[{number}]")
    for number, each in enumerate(_as_list(made.take("pretraining_dataset"))):
        entry = each if isinstance(each, dict) else {"path": each}
        _axolotl_set(made, {"type": "completion", **entry}, f"pretraining_dataset[{number}]")
    for number, each in enumerate(made.listed("test_datasets")):
        _axolotl_set(made, each, f"test_datasets[{number}]", of_eval=True)
    made.same("max_length", "sequence_len", 512)
    is_packed = made.take("sample_packing", False)
    note = (
        "best fit of 65,536 samples at a time; samples stay apart"
        if is_packed
        else "best_fit trains the same samples in fewer rows"
    )
    made.put("packing", "best_fit" if is_packed else "none", "sample_packing", is_packed, note)
    excess = made.take("excess_length_strategy", "drop")
    if excess not in ("drop", "truncate", "raise"):
        raise RecipeError(f"{made.file}: excess_length_strategy is {excess!r}, expected drop, truncate or raise")
    made.put("overflow", "error" if excess == "raise" else excess, "excess_length_strategy", excess)
    if made.take("train_on_inputs", False):
        made.put("train_on", "all", "train_on_inputs", True)
    else:
        made.put("train_on", "assistant", "train_on_inputs", False, "a list of roles does what roles_to_train does")
    made.same("batch_size", "micro_batch_size", 1, "rows of a rank")
    made.leave("gradient_accumulation_steps", "the trainer's: it takes that many batches for a step")
    made.epochs("num_epochs", 1.0)
    made.same("seed", "seed", _SEED, _ORDER)
    made.same("shuffle", "shuffle_merged_datasets")
    if made.take("pad_to_sequence_len"):
        made.put("padding", "max_length", "pad_to_sequence_len", True, "of unpacked rows")
    made.same(
        "cache_dir",
        "dataset_prepared_path",
        note="one folder for all settings: names in it cover tokenizer, template and content",
    )
    made.same("num_proc", "dataset_processes")
    made.same("num_proc", "dataset_num_proc")
    made.same("workers", "dataloader_num_workers")
    _axolotl_template(made)
    for key, why in _NONE_OF_AXOLOTL.items():
        made.leave(key, why)


def _axolotl_template(made: Imported) -> None:
    name, text = made.take("chat_template"), made.take("chat_template_jinja")
    if text is not None:
        made.put("chat_template", text, "chat_template_jinja", "…")
        made.leave("chat_template", "chat_template_jinja is it")
    elif name in (None, "tokenizer_default"):
        made.leave("chat_template", "the tokenizer's own, which is used")
    else:
        made.leave(
            "chat_template",
            "a template of axolotl; the tokenizer's own is used: compare, or write chat_template: with a file",
        )
    made.same("template_kwargs", "chat_template_kwargs")


def _axolotl_set(made: Imported, part: Any, was: str, *, of_eval: bool = False) -> None:
    if not isinstance(part, dict) or "path" not in part:
        raise RecipeError(f"{made.file}: {was} is {str(part)[:60]}, expected a mapping with a path")
    part = dict(part)
    path, files, kind, settings = part.pop("path"), part.pop("data_files", None), part.pop("type", None), Settings()
    if files is not None and (_bare(path) or Path(made.place(path)).is_dir()):
        folder = None if _bare(path) else Path(made.place(path))
        listed = files if isinstance(files, list) else [files]
        path = listed if folder is None else [str(folder / str(each)) for each in listed]
    elif files is not None:
        settings["data_files"] = (files, f"{was}.data_files")
    if isinstance(kind, str) and kind in _AXOLOTL_TYPES:
        note = "; rendered by the chat template, not by axolotl's own text" if kind == "alpaca" else ""
        settings["template"] = (_AXOLOTL_TYPES[kind], f"{was}.type: {kind}{note}")
    elif kind is not None:
        made.left.append(
            f"{was}.type: {kind}  (no equivalent: `penstock check` says which template fits; or write template:)"
        )
    for theirs, ours in (("name", "config"), ("split", "split"), ("revision", "revision"), ("field_messages", "messages_key"),
                         ("field_tools", "tool_key"), ("field_system", "system_key"), ("field", "key"), ("text_column", "key"),
                         ("roles_to_train", "train_on"), ("weight", "weight")):  # fmt: skip
        if (value := part.pop(theirs, None)) is not None and not (of_eval and ours == "weight"):
            settings[ours] = (value, f"{was}.{theirs}")
    for theirs, value in (part.pop("message_property_mappings", None) or {}).items():
        if theirs in ("role", "content"):
            settings[f"{theirs}_key"] = (value, f"{was}.message_property_mappings.{theirs}")
        else:
            made.left.append(
                f"{was}.message_property_mappings.{theirs}: {value}  (no equivalent: rename it with source.map)"
            )
    if (roles := part.pop("roles", None)) is not None:
        settings["role_map"] = (roles, f"{was}.roles")
    if (ds_type := part.pop("ds_type", None)) is not None and not (
        isinstance(path, str) and path.endswith(f".{ds_type}")
    ):
        settings["shape"] = (_shape(made, path, str(ds_type)), f"{was}.ds_type: {ds_type}")
    for key, value in part.items():
        why = (
            "turns end with their end token, which is trained"
            if key in ("train_on_eos", "train_on_eot")
            else "no equivalent"
        )
        made.left.append(f"{was}.{key}: {value}  ({why})")
    made.add(path, settings, f"{was}.path", of_eval=of_eval)


def _shape(made: Imported, path: Any, kind: str) -> str:
    """JSON lines are called json by `datasets`."""
    first = str(path[0] if isinstance(path, list) else path)
    return "jsonl" if kind == "json" and first.endswith((".jsonl", ".ndjson")) else kind
