"""Read keys of other tools: their name → ours, with their values turned into ours; each is reported in one line."""

from collections.abc import Callable, Mapping
from typing import Any

Turn = Callable[[Any], dict[str, Any] | str]  # their value → our keys and values, or why there is none like it


def _as(key: str) -> Turn:
    return lambda value: {key: value}


def _choice(key: str, values: Mapping[Any, Any]) -> Turn:
    def turn(value: Any) -> dict[str, Any] | str:
        known = next((ours for theirs, ours in values.items() if theirs == value and type(theirs) is type(value)), None)
        if known is None:
            listed = ", ".join(_written(each) for each in values)
            return f"{_written(value)} is not known, expected one of {listed}; or write {key}: with a value of ours"
        return {key: known}

    return turn


def _flag(true: dict[str, Any] | str, false: dict[str, Any] | str) -> Turn:
    def turn(value: Any) -> dict[str, Any] | str:
        if not isinstance(value, bool):
            return f"{_written(value)}, expected true or false"
        return true if value else false

    return turn


def _written(value: Any) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


_PACKINGS = {
    **{name: name for name in ("best_fit", "first_fit", "next_fit", "concat", "none")},
    "bfd": "best_fit",
    "ffd": "first_fit",
    "wrapped": "concat",
    "naive": "next_fit",
}


def _packing(value: Any) -> dict[str, Any] | str:
    if isinstance(value, str) and value.startswith(("window_", "group_")):
        return {"packing": value}
    return _choice("packing", _PACKINGS)(value)


# Streaming, as others call it: start at once, and shuffle what is near.
_STREAMED = {"background": True, "window": 16}


def _dataset_type(value: Any) -> dict[str, Any] | str:
    """LMMS-Engine's kinds of data sets: streamed ones by name, and the others, which are read by number as everything is here."""
    if not isinstance(value, str):
        return f"{_written(value)}, expected text"
    return _STREAMED if value.endswith("_iterable") or value == "fineweb_edu" else {}


_PACKED = _flag({"packing": "best_fit"}, {"packing": "none"})
_TEMPLATES = {
    "alpaca": "alpaca",
    "sharegpt": "sharegpt",
    "chat_template": "messages",
    "openai": "messages",
    "completion": "text",
    "pretokenized": "pretokenized",
}
_TAILS = {"exact": "error", "oversampling": "repeat", "undersampling": "drop"}

_SAME: dict[str, tuple[str, ...]] = {
    "max_length": ("packing_length", "sequence_len", "cutoff_len", "max_seq_length", "max_seq_len", "seq_length", "seq_len",
                   "sequence_length", "model_max_length", "block_size"),
    "batch_size": ("micro_batch_size", "per_device_train_batch_size", "micro_train_batch_size_per_gpu"),
    "epochs": ("num_epochs", "num_train_epochs", "num_epoch"),
    "seed": ("data_seed", "rollout_seed", "shuffle_seed"),
    "shuffle": ("rollout_shuffle", "shuffle_dataset"),
    "refresh": ("force_recache", "overwrite_cache"),
    "num_proc": ("num_workers", "dataset_num_proc", "preprocessing_num_workers", "dataset_processes", "n_cores",
                 "filter_overlong_workers"),
    "workers": ("dataloader_num_workers",),
    "prefetch": ("dataloader_prefetch_factor", "prefetch_factor"),
    "pin_memory": ("dataloader_pin_memory",),
    "pad_to": ("pad_to_multiple_of", "data_pad_size_multiplier"),
    "tokenizer": ("tokenizer_name_or_path", "tokenizer_name", "tokenizer_path", "tokenizer_config", "model_name_or_path",
                  "base_model", "model_path", "hf_checkpoint"),
    "cache_dir": ("dataset_prepared_path", "tokenized_path", "preprocess_cache_dir"),
    "shape": ("dataset_format", "data_type", "format", "ds_type", "file_format"),
    "split": ("dataset_split", "train_split"),
    "data": ("dataset_path", "data_path", "train_path", "train_data", "train_file", "prompt_data", "datasets", "train_datasets",
             "dataset", "train_dataset", "pretokenized_dataset_paths"),
    "eval": ("eval_dataset_path", "eval_datasets", "eval_dataset", "eval_data", "eval_prompt_data", "test_datasets",
             "eval_pretokenized_dataset_paths", "validation_file"),
    "output_key": ("label_key", "completion_key", "response_key", "field_output"),
    "input_key": ("prompt_key", "query_key"),
    "tool_key": ("tools_key", "field_tools"),
    "messages_key": ("conversation_key", "conversations_key", "field_messages", "messages_field"),
    "role_key": ("message_field_role", "role_field"),
    "content_key": ("message_field_content", "content_field"),
    "key": ("text_field", "text_column", "text_key", "dataset_text_field"),
    "chat_template": ("chat_template_path", "chat_template_jinja"),
    "template_kwargs": ("apply_chat_template_kwargs", "chat_template_kwargs"),
    "weight": ("probability", "sampling_ratio", "sampling_weight", "sampling_prob", "ratio"),
    "path": ("json_path", "file", "location"),
    "options": ("kwargs",),
}  # fmt: skip

_TURNED: dict[str, Turn] = {
    "packing_strategy": _packing,
    "sample_packing": _PACKED,
    "neat_packing": _PACKED,
    "use_sequence_packing": _PACKED,
    "filter_overlong": _flag({"overflow": "drop"}, "false is not known; write overflow: truncate, split or error"),
    "streaming": _flag(_STREAMED, {}),
    "dataset_type": _dataset_type,
    "disable_cache": _flag({"cache": False}, {"cache": True}),
    "sampling_strategy": _choice("tail", _TAILS),
    "drop_last": _flag({"tail": "drop"}, {"tail": "pad"}),
    "dataloader_drop_last": _flag({"tail": "drop"}, {"tail": "pad"}),
    "sampler": _choice("shuffle", {"random": True, "sequential": False}),
    "stopping_strategy": _choice("stop", {"first_exhausted": "first", "all_exhausted": "all"}),
    "pad_to_max_length": _flag({"padding": "max_length"}, {"padding": "longest"}),
    "pad_to_sequence_len": _flag({"padding": "max_length"}, {"padding": "longest"}),
    "train_on_what": _choice("train_on", {"last_assistant_message": "last", "all_assistant_messages": "assistant"}),
    "type": _choice("template", _TEMPLATES),
    "formatting": _choice("template", _TEMPLATES),
    "train_on_inputs": _flag({"train_on": "all"}, {}),
    "train_on_prompt": _flag({"train_on": "all"}, {}),
    "mask_history": _flag({"train_on": "last"}, {}),
    "assistant_only_loss": _flag({"train_on": "assistant"}, "false trains every token; write train_on: all"),
    "completion_only_loss": _flag({"train_on": "completion"}, "false trains every token; write train_on: all"),
}  # fmt: skip

# Our own names under which other tools write other values.
OUR_NAMES: dict[str, tuple[type, Turn]] = {"packing": (bool, _PACKED)}

# Of a data set, where nothing here asks for it: why.
UNUSED = {"data_folder": "records are given as written, and nothing there is opened"}

# Foreign keys that stand for several of ours, each of which may be written beside them and then counts.
IMPLIED = ("streaming", "dataset_type")

# Other tools say with one key whether to pack, and with another how.
SWITCHES = ("packing", *(name for name, turn in _TURNED.items() if turn is _PACKED))
STRATEGY = "packing_strategy"

CALLED: dict[str, Turn] = {**{name: _as(ours) for ours, names in _SAME.items() for name in names}, **_TURNED}


def ours(key: str) -> tuple[str, ...]:
    """What a foreign name is about, for suggestions and the reference."""
    if same := [name for name, names in _SAME.items() if key in names]:
        return tuple(same)
    theirs = (
        True,
        False,
        *_PACKINGS,
        *_TAILS,
        *_TEMPLATES,
        "random",
        "first_exhausted",
        "last_assistant_message",
        "_iterable",
    )
    samples = [made for value in theirs if isinstance(made := CALLED[key](value), dict)]
    return tuple(dict.fromkeys(name for made in samples for name in made))
