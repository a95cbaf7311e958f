"""Say what to write instead of a key of another tool that a recipe does not take.

Keys that a recipe takes under their own name are in names.py; docs/guides/coming-from.md explains both.
"""

import difflib
from collections.abc import Sequence

from penstock.recipe.keys import keys, source_options
from penstock.recipe.names import CALLED, ours

_TRAINER = "it belongs to the trainer, not to the data"
_LIMIT = "end your training loop where you like; a recipe has no number of steps"
_ROLLOUTS = "a recipe has no rollouts"
_MEDIA = "a recipe has no settings for images, audio or video"
_SEQUIFIER = "sequifier makes its windows and columns itself; open the folder that it wrote"

INSTEAD: dict[str, str] = {
    # miles
    "metadata_key": "other columns make no tokens, so none is named; batch.provenance names the record",
    "multimodal_keys": _MEDIA,
    "apply_chat_template": "write template: messages; a conversation is always rendered by its chat template",
    "rollout_max_prompt_len": "write max_length: and overflow: drop",
    "num_rollout": _LIMIT,
    "rollout_batch_size": "write batch_size: rows per rank",
    "global_batch_size": "write batch_size: rows per rank; a step has batch_size × ranks",
    "use_dynamic_batch_size": "write packing: best_fit",
    "max_tokens_per_gpu": "write max_length: tokens per row",
    "balance_data": "rows are nearly full, so ranks get nearly the same number of tokens; leave it out",
    "balance_by_flops": "rows are nearly full, so ranks get nearly the same number of tokens; leave it out",
    "allow_partial_train_step": "write tail: pad",
    "loss_mask_type": "write train_on: assistant; turns are found in the rendered text",
    "step_loss_mask": 'write "train": false or "loss": 0 in the message',
    "qkv_format": "write padding_free: true for thd",
    "n_samples_per_prompt": _ROLLOUTS,
    "partial_rollout": _ROLLOUTS,
    "over_sampling_batch_size": _ROLLOUTS,
    "dynamic_sampling_filter_path": _ROLLOUTS,
    "buffer_filter_path": _ROLLOUTS,
    "data_source_path": "penstock.open takes a function that yields records",
    # SkyRL
    "train_dataset_splits": "write split: in each data set, such as data: {chat: {path: chat, split: train}}",
    "eval_dataset_splits": "write split: in each eval set, such as eval: {held_out: {path: chat, split: test}}",
    "train_dataset_weights": "write weight: in each data set, such as data: {chat: {path: chat.jsonl, weight: 0.7}}",
    "dataset_name": "nothing is downloaded; write data: with a local path, or give penstock.open a datasets.Dataset",
    "eval_interval": _TRAINER,
    "eval_before_train": _TRAINER,
    "num_steps": _LIMIT,
    "max_training_steps": _LIMIT,
    "async_batch_collation": "write prefetch: steps that are read ahead",
    "sampler_class_path": "the order is part of the plan; write shuffle:, seed: and weight:",
    "sampler_kwargs": "the order is part of the plan; write shuffle:, seed: and weight:",
    "remove_microbatch_padding": "write padding_free: true",
    "max_tokens_per_microbatch": "write max_length: tokens per row",
    "resume_from": "resume in Python: loader.load_state_dict(state)",
    "dummy_run_full_ctx": "measure the loader with: penstock bench",
    # datasets
    "data_files": "write data: with a path, a glob or a list of them",
    "buffer_size": "write window: the number of shards that are shuffled together",
    "probabilities": "write weight: in each data set, such as data: {chat: {path: chat.jsonl, weight: 0.7}}",
    "load_from_cache_file": "write refresh: true to prepare again",
    # LMMS-Engine
    "data_folder": "records are given as written, and no file in them is opened; leave it out",
    "packing_kwargs": "write packing: with its length in max_length:",
    "group_by_length": "write packing: group_64",
    "max_steps": "leave it out: len(loader) is the exact number of steps",
    "object_storage": "write data: with a local path",
    **dict.fromkeys(("fps", "frame_num", "video_backend", "video_sampling_strategy", "video_max_pixels"), _MEDIA),
    # sequifier
    **dict.fromkeys(("write_format", "stored_context_width", "stride_by_split", "mask_column"), _SEQUIFIER),
    **dict.fromkeys(("normalize_real_columns", "model_window_stride"), _SEQUIFIER),
    "split_ratios": "split in Python: source.train_test_split(test_size=0.1); or write eval: with files of its own",
    "continue_preprocessing": "leave it out: an interrupted prepare always continues",
    "load_full_data_to_ram": "leave it out: files are memory-mapped",
    "max_ram_gb": "leave it out: files are memory-mapped",
    "sample_valid_mask": "write tail: pad",
    # trl, axolotl, LLaMA-Factory
    **dict.fromkeys(("val_set_size", "val_size", "test_size"), "write eval: with files of its own"),
    "max_samples": "choose rows in the path: data: chat.jsonl@[:1000]",
    "interleave_probs": "write weight: in each data set, such as data: {chat: {path: chat.jsonl, weight: 0.7}}",
    "mix_strategy": "write stop: first, or stop: all",
    "gradient_accumulation_steps": _TRAINER,
    "learning_rate": _TRAINER,
}


def unknown_key(name: str, known: Sequence[str]) -> str:
    """What to say about a key that a recipe does not take; `known` are those that it takes in this place."""
    start = f"unknown key {name!r}"
    if name in INSTEAD:
        return f"{start}: {INSTEAD[name]}"
    if name in source_options():
        formats = ", ".join(source_options()[name])
        return (
            f"{start}: it is an option of the source ({formats}) and belongs under options:, as options: {{{name}: …}}"
        )
    near = difflib.get_close_matches(name, [*known, *keys(), *CALLED, *source_options()], n=1)
    if near and near[0] in (*known, *keys()):
        return f"{start}; did you mean {near[0]!r}?"
    if near and near[0] in CALLED:
        meant = " or ".join(repr(key) for key in ours(near[0])) or repr(near[0])
        return f"{start}; did you mean {near[0]!r}, which is {meant} here?"
    if near:
        return f"{start}; did you mean {near[0]!r}, under options:?"
    return f"{start}; `penstock init` writes a recipe with the usual keys, docs/reference/recipe.md lists all"
