"""What the settings of trl and axolotl mean as a recipe; foreign_factory.py has those of LLaMA-Factory."""

from pathlib import Path
from typing import Any

from penstock.errors import PenstockError, RecipeError
from penstock.extras.imports.foreign import Imported, Settings, as_list, random_part
from penstock.extras.imports.foreign_read import LOAD_DATASET, METHODS, SPLIT_SIZE, Computed
from penstock.types import Record

_ORDER = "the order is another one"
_SEED = 42  # of transformers and axolotl
_LONG = 1 << 17  # tokens of a sample where their tool cuts nothing
_NOT_PACKED = "best_fit trains the same samples in fewer rows"
_BARE = (
    "json",
    "csv",
    "parquet",
    "text",
    "arrow",
    "webdataset",
    "imagefolder",
)  # load_dataset("json", data_files=…)
_TRL_PACKING = {
    "bfd": ("best_fit", "truncate"),
    "bfd_split": ("best_fit", "split"),
    "wrapped": ("concat", "split"),
}
# The template that the data of each trainer needs; SFT's is found in the data.
_TRL_TEMPLATES = {
    **dict.fromkeys(("dpo", "orpo", "cpo", "reward"), "preference"),
    **dict.fromkeys(("kto", "bco"), "kto"),
    **dict.fromkeys(("grpo", "rloo"), "prompt"),
}
# Keys that tell how a YAML file trains, in the order in which they decide.
_TRL_MARKS = {
    "grpo": {"num_generations", "max_completion_length", "reward_weights", "reward_funcs"},
    "kto": {"desirable_weight", "undesirable_weight"},
    "reward": {"center_rewards_coefficient"},
    "dpo": {
        "f_divergence_type",
        "discopop_tau",
        "ld_alpha",
        "use_weighting",
        "loss_weights",
        "rpo_alpha",
    },
}
_NOT_OF_SFT = {"beta", "precompute_ref_log_probs", "ref_model_sync_steps", "sync_ref_model"}
_NONE_OF_TRL = {
    "pad_token": "write pad_token_id: with its number; padding is never trained",
    "dataset_kwargs": "data is always prepared; records with input_ids are taken as they are",
}
_NONE_OF_TRAINING_ARGUMENTS = {
    "gradient_accumulation_steps": "the trainer's: it takes that many batches for a step",
    **dict.fromkeys(
        (
            "dataloader_num_workers",
            "dataloader_persistent_workers",
            "dataloader_multiprocessing_context",
            "dataloader_in_order",
        ),
        "not needed: batches are made ahead by a thread",
    ),
    "ignore_data_skip": "not needed: a resumed run goes on at its position and reads nothing twice",
}
_AXOLOTL_TYPES = {
    "chat_template": "messages",
    "sharegpt": "sharegpt",
    "alpaca": "alpaca",
    "completion": "text",
    "pretrain": "text",
    "input_output": "segments",
}
_AXOLOTL_PAIRS = {**dict.fromkeys(("dpo", "ipo", "orpo", "simpo"), "preference"), "kto": "kto"}
_AXOLOTL_KEYS = {
    "name": "config",
    "split": "split",
    "revision": "revision",
    "field_messages": "messages_key",
    "field_tools": "tool_key",
    "field_system": "system_key",
    "field": "key",
    "text_column": "key",
    "roles_to_train": "train_on",
    "roles": "role_map",
    "field_chosen": "chosen_key",
    "field_rejected": "rejected_key",
    "chat_template_jinja": "chat_template",
}
_PACKING = """sample_packing_group_size sample_packing_bin_size sample_packing_sequentially multipack_real_batches
  pretrain_multipack_attn batch_flattening curriculum_sampling"""
_TOKENIZER = (
    """tokenizer_use_fast tokenizer_legacy tokenizer_use_mistral_common added_tokens_overrides"""
)
_STORAGE = """dataset_keep_in_memory dataset_shard_num dataset_shard_idx num_dataset_shards_to_save push_dataset_to_hub
  preprocess_iterable streaming_multipack_buffer_size pretrain_multipack_buffer_size sample_packing_mp_start_method"""
_TOKENS = "the tokenizer's: save it with these tokens, and name its folder"
_NONE_OF_AXOLOTL = {
    **dict.fromkeys(
        _PACKING.split(),
        "no equivalent: packing: and block: decide; an eval set may have its own packing:",
    ),
    **dict.fromkeys(("special_tokens", "tokens"), _TOKENS),
    "gradient_accumulation_steps": "the trainer's: it takes that many batches for a step",
    "min_sample_len": "no equivalent: filter in Python, source.filter(…)",
    "dataset_exact_deduplication": "no equivalent; `penstock check` counts duplicates",
    "skip_prepare_dataset": "data is always prepared, once",
    **dict.fromkeys(_TOKENIZER.split(), _TOKENS),
    **dict.fromkeys(_STORAGE.split(), "not needed: data is read where it is, and prepared once"),
    "default_system_message": "no equivalent: write the system message in the records, or in the chat template",
    "eot_tokens": "turns are found in the rendered text, with the token that ends them",
    "shuffle_before_merging_datasets": "the order is the plan's: shuffle: and seed:",
    "max_prompt_len": "no equivalent: pairs that are longer than max_length are dropped and counted",
    "eval_sequence_len": "write max_length: in the eval set",
    "image_size": "set it in the processor's own files, and write processor: with their folder",
    "image_resize_algorithm": "the processor's own files say it",
    "processor_type": "write processor: with the folder of the processor's files",
    **dict.fromkeys(
        (
            "context_parallel_size",
            "sequence_parallel_degree",
            "tensor_parallel_size",
            "dp_shard_size",
            "dp_replicate_size",
        ),
        "the trainer's: ranks that work on the same rows must get them, so give the loader its rank and world_size",
    ),
    "use_pose": "no equivalent: positions are those of the tokens",
}


def of_training_arguments(made: Imported, *, sampling_default: str = "random") -> None:
    """Write the settings of transformers' TrainingArguments.

    sampling_default: their value of `train_sampling_strategy` if it is not given; KTO of trl reads in the order of the data.
    """
    note = "rows of a rank; a row may hold several samples"
    made.same("batch_size", "per_device_train_batch_size", default=8, note=note)
    made.epochs("num_train_epochs", 3.0)
    _seed_of_order(made)
    _sampling(made, sampling_default)
    _last_step(made)
    made.leave_all(_NONE_OF_TRAINING_ARGUMENTS)


def _seed_of_order(made: Imported) -> None:
    """Write their seed for the order of the data, which is `data_seed`, or else `seed`."""
    made.take("seed")
    key = "seed" if made.take("data_seed") is None else "data_seed"
    made.same("seed", key, default=_SEED, note=_ORDER)


def _sampling(made: Imported, default: str) -> None:
    """Write whether records are shuffled, or grouped by their length."""
    key = "train_sampling_strategy"
    sampling = made.take(key, default)
    if sampling == "sequential":
        made.put("shuffle", False, key, sampling)
    # Older versions of transformers have a key for grouping alone.
    is_strategy = sampling == "group_by_length"
    group_by_length(made, key if is_strategy else "group_by_length")


def _last_step(made: Imported) -> None:
    """Write what happens to the last step of an epoch, which is seldom full."""
    key = "dataloader_drop_last"
    is_dropped = made.take(key, False)
    if is_dropped:
        made.put("last_step", "drop", key, is_dropped)
    else:
        note = "the last step is filled up with rows without loss"
        made.put("last_step", "pad", key, is_dropped, note)


def group_by_length(made: Imported, key: str) -> None:
    """Samples of about one length in a batch, where nothing packs them."""
    if made.take(key) and made.top["packing"][0] == "none":
        made.put(
            "packing",
            "group_64",
            key,
            made.take(key),
            "samples of one length together, one in a row",
        )


def streamed(made: Imported, key: str) -> None:
    """Data that is read while training goes on."""
    if made.take(key, False):
        made.put("background", True, key, True, "records still have numbers")
        made.put("shuffle_window", 16, key, True, "that many shards are shuffled together")


def trl(made: Imported) -> None:
    """The config class of a trainer, ScriptArguments, ModelConfig and DatasetMixtureConfig of trl 1.16."""
    made.same("tokenizer", "model_name_or_path", note="its tokenizer, or write a local folder")
    _trl_data(made)
    method = made.method or _trl_method(made)
    template = _TRL_TEMPLATES.get(method)
    if template is None:
        _trl_sft_rows(made)
        _trl_records(made)
    else:
        _trl_other_rows(made, method, template)
    of_training_arguments(made, sampling_default="sequential" if method == "kto" else "random")
    multiple = made.take("pad_to_multiple_of")
    if isinstance(multiple, int):
        made.put("pad_to_multiple_of", multiple, "pad_to_multiple_of", multiple)
    else:
        made.leave(
            "pad_to_multiple_of",
            "auto decides by the model; write pad_to_multiple_of: if it needs one",
        )
    made.same("eos", "eos_token")
    made.hold_out(SPLIT_SIZE, seed=made.top["seed"][0])
    made.pack_evals("eval_packing")
    made.leave_all(_NONE_OF_TRL)


def _trl_method(made: Imported) -> str:
    """Tell from its keys how a file trains, and from its records where keys leave it open."""
    keys = {*made.given, *made.computed}
    for method, marks in _TRL_MARKS.items():
        if keys & marks:
            return method
    if not keys & _NOT_OF_SFT:
        return "sft"
    columns = [set(record) for record in _first_records(made) or ()]
    if columns and all("rejected" in names for names in columns):
        return "dpo"
    if columns and all({"completion", "label"} <= names for names in columns):
        return "kto"
    found = ", ".join(sorted(keys & _NOT_OF_SFT))
    raise RecipeError(
        f"{made.file}: {found} belongs to a trainer of pairs, judged answers or prompts, and nothing says which; import the command "
        f"that names it, such as a script with: trl dpo --config {made.file.name} (one of {', '.join(METHODS)})"
    )


def _trl_length(made: Imported) -> bool:
    """Write the length of a row; return whether trl cuts at all."""
    # max_seq_length: its name in older versions
    key = "max_seq_length" if "max_seq_length" in made.given else "max_length"
    is_cut = made.given.get(key, 1024) is not None
    note = "" if is_cut else "null cuts nothing there: raise it if a sample is longer"
    made.put(
        "max_length",
        made.take(key, 1024 if is_cut else _LONG),
        key,
        made.take(key, 1024 if is_cut else "null"),
        note,
    )
    return is_cut


def _trl_other_rows(made: Imported, method: str, template: str) -> None:
    """Length and template of pairs, judged answers and prompts."""
    trains = "its command or its config class says so" if made.method else "its keys say so"
    made.top["template"] = (template, f"trl {method}: {trains}")
    made.put(
        "packing", "none", "packing", made.take("packing", False), f"trl {method} does not pack"
    )
    if template == "prompt":
        note = f"trl {method} cuts no prompts: raise it if one is longer"
        made.top["max_length"] = (_LONG, note)
        made.top["on_overlong"] = ("error", note)
        count = made.take("num_generations", 8 if method == "grpo" else 2)
        made.left.append(
            f"num_generations: {count}  (penstock.Prompts(recipe, repeats={count}): see docs/guides/rl.md)"
        )
        return
    is_cut = _trl_length(made)
    mode = made.take("truncation_mode", "keep_start")
    note = "answers are never cut here; trl cuts them at max_length"
    if method == "reward":
        note = "as trl does"
    made.put("on_overlong", "drop" if is_cut else "error", "truncation_mode", mode, note)
    made.leave("packing_strategy", "packing is off")
    made.leave("padding_free", f"trl {method} has it for its own batches; rows are padded here")


def _trl_sft_rows(made: Imported) -> None:
    """Length and packing of SFTConfig."""
    is_cut = _trl_length(made)
    strategy = made.take("packing_strategy", "bfd")
    if strategy not in _TRL_PACKING:
        raise RecipeError(
            f"{made.file}: packing_strategy is {strategy!r}, expected one of {', '.join(_TRL_PACKING)}"
        )
    mode = made.take("truncation_mode", "keep_start")
    if made.take("packing", False):
        packing, on_overlong = _TRL_PACKING[strategy]
        made.put(
            "packing",
            packing,
            "packing_strategy",
            strategy,
            "of 65,536 samples at a time, not 1,000",
        )
        made.put("on_overlong", on_overlong, "packing_strategy", strategy)
        made.put("padding_free", True, "packing", True, "trl packs without padding")
    else:
        made.put("packing", "none", "packing", False, _NOT_PACKED)
        made.leave("packing_strategy", "packing is off")
        kept = mode == "keep_start"
        note = (
            ""
            if kept
            else "no equivalent: overlong samples are dropped and counted; trl keeps their ends"
        )
        on_overlong = "error" if not is_cut else "truncate" if kept else "drop"
        made.put("on_overlong", on_overlong, "truncation_mode", mode, note)
    if made.take("padding_free", False):
        made.same("padding_free", "padding_free")


def _trl_data(made: Imported) -> None:
    train = made.take("dataset_train_split", "train")
    test = made.take("dataset_test_split", "test")
    is_evaluated = made.given.get("eval_strategy", "no") not in ("no", False, None)
    name = made.take("dataset_name")
    settings = Settings()
    for key in ("dataset_streaming", "streaming"):
        streamed(made, key)
    if (config := made.take("dataset_config")) is not None:
        settings["config"] = (config, made.was("dataset_config", config))
    if name is not None:
        is_here = Path(made.place(name)).is_file()
        splits = {} if is_here else {"split": (train, made.was("dataset_train_split", train))}
        made.add(name, {**settings, **splits}, made.was("dataset_name", name))
        if is_evaluated and not is_here:
            was = made.was("dataset_test_split", test)
            made.add(
                name,
                {**settings, "split": (test, was)},
                made.was("dataset_name", name),
                of_eval=True,
            )
    if not made.evals:
        made.leave("dataset_test_split", "nothing is evaluated, or the data is one file")
    _trl_calls(made, has_data=name is not None or bool(made.given.get("datasets")))
    for number, each in enumerate(made.listed("datasets")):
        part = made.part(each, f"datasets[{number}]")
        was = f"datasets[{number}]"
        settings = made.settings_of(
            part, {"name": "config", "split": "split", "fraction": "weight"}, was
        )
        if "weight" in settings:
            note = "an exact share: trl keeps the first records of each"
            settings["weight"] = (settings["weight"][0], f"{was}.fraction; {note}")
        path = _place(made, part, settings, was)
        made.leave_part(
            part,
            was,
            "no equivalent: name files in path:; columns that a template does not read are left",
        )
        made.add(path, settings, f"{was}.path")


def _trl_calls(made: Imported, *, has_data: bool) -> None:
    """Add the datasets that a Python script loads: the first, and for evaluation other splits of the same one."""
    first: Any = None
    for number, call in enumerate(made.listed(LOAD_DATASET)):
        was = f"{LOAD_DATASET}[{number}]"
        part = {key: value for key, value in call.items() if type(value) is not Computed}
        unknown = {key: value for key, value in call.items() if key not in part}
        split = str(part.get("split") or "train").partition("[")[0]
        place = (part.get("path"), part.get("name"), str(part.get("data_files")))
        is_other = first is not None and place != first
        if has_data or "path" not in part or is_other:
            why = "another dataset than the first: write it under data: or eval:"
            if "path" not in part:
                why = "computed by the script: write its path under data:"
            if has_data:
                why = "dataset_name or datasets names the data"
            made.leave_part(call, was, why)
            continue
        of_eval = first is not None and split != "train"
        first = place
        if part.pop("streaming", False) is True:
            made.top["background"] = (True, f"{was}.streaming: true; records still have numbers")
            made.top["shuffle_window"] = (
                16,
                f"{was}.streaming: that many shards are shuffled together",
            )
        keys = {"name": "config", "split": "split", "revision": "revision"}
        settings = made.settings_of(part, keys, was)
        path = _place(made, part, settings, was)
        if (
            isinstance(path, str)
            and Path(made.place(path)).is_file()
            and settings.get("split", ("",))[0] == "train"
        ):
            settings.pop("split")  # all rows of a file are its split train
        made.leave_part(part, was, "no equivalent: name files in path:")
        made.leave_part(unknown, was, "computed by the script")
        made.add(path, settings, f"{was}.path", of_eval=of_eval)


def _place(made: Imported, part: dict[str, Any], settings: Settings, was: str) -> Any:
    """Return the place that `load_dataset(path, data_files=…)` reads."""
    path = part.pop("path")
    files = part.pop("data_files", None)
    if isinstance(files, dict):  # files by split
        split, slash, rows = str(settings.pop("split", ("train", ""))[0]).partition("[")
        if split not in files:
            raise RecipeError(
                f"{made.file}: {was}.data_files has no split {split!r}, expected one of {', '.join(files)}"
            )
        files = files[split]
        if slash:
            settings["split"] = (f"train[{rows}", f"{was}.split: {split}[{rows}")
    if files is None:
        return path
    if path in _BARE:
        return files
    if Path(made.place(path)).is_dir():
        return [str(Path(made.place(path)) / str(each)) for each in as_list(files)]
    settings["data_files"] = (files, f"{was}.data_files")
    return path


def _trl_records(made: Imported) -> None:
    """What is trained, and the column of texts: trl looks at the first record."""
    records = _first_records(made)
    field = made.take("dataset_text_field")
    chats = {"messages", "conversations", "prompt"}
    has_field = [field in each and not chats & each.keys() for each in records or ()]
    if has_field and not any(has_field):
        made.leave(
            "dataset_text_field",
            "records have no such column, or are chats, where trl does not read it",
        )
    elif field is not None:
        made.put(
            "key",
            field,
            "dataset_text_field",
            field,
            "" if has_field else "with template: text, if none is found",
        )
    if has_field and all(has_field):
        made.put("template", "text", "dataset_text_field", field, "every token is trained")
    else:
        _trl_loss(made, records)
    if any("conversations" in each for each in records or ()):
        made.left.append(
            "conversations: human and gpt become user and assistant; trl renders these names as they are"
        )


def _trl_loss(made: Imported, records: list[Record] | None) -> None:
    is_pair = (
        None
        if records is None
        else all("prompt" in each and "completion" in each for each in records)
    )
    completion = made.take("completion_only_loss")
    assistant = made.take("assistant_only_loss", False)
    key, value = (
        ("assistant_only_loss", True) if assistant else ("completion_only_loss", completion)
    )
    if assistant:
        trained = "assistant"
        note = "turns are found in the rendered text, tags are not needed"
        if completion is not False and is_pair:
            trained = "last"
            note = (
                "the assistant's turn in the completion; turns before the last are not trained here"
            )
    elif is_pair if completion is None else completion:
        trained = "completion"
        note = "records have a prompt and a completion"
        if is_pair is False:
            trained = "all"
            note = "records have no prompt and completion: trl trains every token"
    else:
        trained = "all"
        note = "everything, prompts too; train_on: assistant is usual"
    if is_pair is None and completion is None:
        note += "; if records have a prompt and a completion, trl trains the completion: "
        note += f"write train_on: {'last' if assistant else 'completion'}"
    made.put("train_on", trained, key, "null" if value is None else value, note)
    made.leave("completion_only_loss" if assistant else "assistant_only_loss", f"{key} decides")


def _first_records(made: Imported) -> list[Record] | None:
    """Return the first record of each dataset, or None if one of them is not here."""
    from penstock.api import open as open_data

    found = [settings["path"][0] for settings in made.sets.values()]
    if not found or not all(isinstance(path, str) and Path(path).exists() for path in found):
        return None
    try:
        return [open_data(path)[0] for path in found]
    except (PenstockError, IndexError):
        return None


def axolotl(made: Imported) -> None:
    """The YAML of axolotl."""
    rl = made.take("rl")
    if rl is not None and rl not in _AXOLOTL_PAIRS:
        raise RecipeError(
            f"{made.file}: rl is {rl!r}, expected one of {', '.join(_AXOLOTL_PAIRS)}; its data has no recipe"
        )
    made.same("tokenizer", "tokenizer_config" if made.take("tokenizer_config") else "base_model")
    if made.take("tokenizer_config"):
        made.leave("base_model", "the trainer's; tokenizer_config names the tokenizer")
    for number, each in enumerate(made.listed("datasets")):
        _axolotl_set(made, each, f"datasets[{number}]", rl)
    for number, each in enumerate(as_list(made.take("pretraining_dataset"))):
        entry = each if isinstance(each, dict) else {"path": each}
        _axolotl_set(made, {"type": "completion", **entry}, f"pretraining_dataset[{number}]")
    for number, each in enumerate(made.listed("test_datasets")):
        _axolotl_set(made, each, f"test_datasets[{number}]", rl, of_eval=True)
    _axolotl_rows(made, {settings.get("template", ("", ""))[0] for settings in made.sets.values()})
    made.same("batch_size", "micro_batch_size", 1, "rows of a rank")
    made.epochs("num_epochs", 1.0)
    made.same("seed", "seed", _SEED, _ORDER)
    made.same("shuffle", "shuffle_merged_datasets")
    streamed(made, "streaming")
    if made.take("pad_to_sequence_len"):
        made.put("padding", "max_length", "pad_to_sequence_len", True, "of unpacked rows")
    note = "one folder for all settings: names in it cover tokenizer, template and content"
    made.same("cache_dir", "dataset_prepared_path", note=note)
    text = made.take("chat_template_jinja")
    if text is not None:
        made.put("chat_template", text, "chat_template_jinja", "…")
        made.leave("chat_template", "chat_template_jinja is it")
    elif made.take("chat_template") in (None, "tokenizer_default"):
        made.leave("chat_template", "the tokenizer's own, which is used")
    else:
        why = "a template of axolotl; the tokenizer's own is used: compare, or write chat_template: with a file"
        made.leave("chat_template", why)
    # axolotl takes the last rows of all data, which it has shuffled before
    is_shuffled = made.take("shuffle_merged_datasets", True)
    made.hold_out("val_set_size", seed=made.top["seed"][0], is_random=bool(is_shuffled))
    made.pack_evals("eval_sample_packing")
    made.leave_all(_NONE_OF_AXOLOTL)


def _axolotl_rows(made: Imported, templates: set[str]) -> None:
    """Length, packing and loss."""
    made.same("max_length", "sequence_len", 512)
    is_packed = made.take("sample_packing", False)
    note = "best fit of 65,536 samples at a time; samples stay apart" if is_packed else _NOT_PACKED
    made.put("packing", "best_fit" if is_packed else "none", "sample_packing", is_packed, note)
    group_by_length(made, "group_by_length")
    excess = made.take("excess_length_strategy", "drop")
    if excess not in ("drop", "truncate", "raise"):
        raise RecipeError(
            f"{made.file}: excess_length_strategy is {excess!r}, expected drop, truncate or raise"
        )
    on_overlong = "error" if excess == "raise" else excess
    note = ""
    if templates == {"text"}:
        on_overlong = "split"
        note = "texts are cut into rows, as axolotl does before"
    elif "text" in templates:
        note = "for texts, too, which axolotl splits into rows"
    made.put("on_overlong", on_overlong, "excess_length_strategy", excess, note)
    everything = made.take("train_on_inputs", False)
    if templates <= {"text", "segments", "preference", "kto"}:
        made.leave("train_on_inputs", "the template decides what is trained")
    else:
        note = "" if everything else "a list of roles does what roles_to_train does"
        made.put(
            "train_on", "all" if everything else "assistant", "train_on_inputs", everything, note
        )


def _axolotl_set(
    made: Imported, each: Any, was: str, rl: str | None = None, *, of_eval: bool = False
) -> None:
    part = made.part(each, was)
    kind = part.pop("type", None)
    keys = dict(_AXOLOTL_KEYS)
    settings: Settings = {}
    if rl is not None:
        settings["template"] = (
            _AXOLOTL_PAIRS[rl],
            f"rl: {rl}; {was}.type: {kind}: roles and texts are found by themselves",
        )
        keys["field_messages"] = "input_key"
    elif isinstance(kind, str) and kind in _AXOLOTL_TYPES:
        note = (
            "; rendered by the chat template, not by axolotl's own text" if kind == "alpaca" else ""
        )
        settings["template"] = (_AXOLOTL_TYPES[kind], f"{was}.type: {kind}{note}")
    elif kind is not None:
        why = "no equivalent: `penstock check` says which template fits; or write template:"
        made.left.append(f"{was}.type: {kind}  ({why})")
    settings |= made.settings_of(part, keys, was)
    path = _place(made, part, settings, was)
    note = f"{was}.path"
    cut = ""
    share = part.pop("weight", None)
    if isinstance(share, float) and 0 < share < 1:
        note += f"; {was}.weight: {share}: as many records by another random choice than axolotl's"
        cut = random_part("test", share, made.take("seed", _SEED))
    elif share is not None:
        made.leave_part(
            {"weight": share},
            was,
            "all records are read" + ("" if share == 1 else ": no equivalent"),
        )
    mappings = dict(part.pop("message_property_mappings", None) or {})
    names = {} if rl else {"role": "role_key", "content": "content_key"}
    settings |= made.settings_of(mappings, names, f"{was}.message_property_mappings")
    made.leave_part(
        mappings, f"{was}.message_property_mappings", "no equivalent: rename it with source.map"
    )
    ds_type = part.pop("ds_type", None)
    first = str(as_list(path)[0])
    if ds_type is not None and not first.endswith(f".{ds_type}"):
        shape = "jsonl" if ds_type == "json" and first.endswith((".jsonl", ".ndjson")) else ds_type
        settings["format"] = (shape, f"{was}.ds_type: {ds_type}")
    for key in ("train_on_eos", "train_on_eot"):
        made.leave_part(
            {key: part.pop(key)} if key in part else {},
            was,
            "turns end with their end token, which is trained",
        )
    made.leave_part(part, was, "no equivalent")
    made.add(path, settings, note, of_eval=of_eval, cut=cut)
