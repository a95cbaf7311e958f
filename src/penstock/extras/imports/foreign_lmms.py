"""What the settings of LMMS-Engine mean as a recipe: its dataset_config and trainer_args, which foreign_read.py joins."""

from typing import Any

from penstock.aliases import ALIASES, as_yaml
from penstock.errors import RecipeError
from penstock.extras.imports.foreign import Imported, Settings
from penstock.extras.imports.foreign_tools import of_training_arguments

_LENGTH = 32_000  # its packing_length
_FRAMES = 64  # its frame_num
_TEXT_PROCESSORS = ("pure_text", "qwen2")  # for models without media
# Its first_fit keeps one open row, which is next_fit.
_PACKING = {"first_fit": "next_fit", "next_fit": "next_fit", "best_fit": "best_fit"}
# What its collator for diffusion language models does: special tokens are never masked.
_DIFFUSION = {"name": "masked_diffusion", "p_min": 0.01, "p_max": 0.99, "mask_special": False}
_NONE = {
    "packing_kwargs": "no equivalent: packing: and block: decide",
}


def lmms_engine(made: Imported) -> None:
    """Write the datasets, the processor, rows and order."""
    _data_set_type(made)
    _processor(made)
    _data(made)
    _video(made)
    _rows(made)
    _collator(made)
    made.same("shuffle", "shuffle")
    made.same("num_proc", "filter_overlong_workers")
    of_training_arguments(made)
    made.leave_all(_NONE)


def _data_set_type(made: Imported) -> None:
    """Write what the type of dataset asks for; refuse those that have no equivalent."""
    kind = made.take("dataset_type")
    settings = ALIASES["dataset_type"].translate(kind)
    if isinstance(settings, str):
        raise RecipeError(f"{made.file}: dataset_type: {settings}")
    for key, value in settings.items():
        made.put(key, value, "dataset_type", kind)


def _collator(made: Imported) -> None:
    """Write what the collator of its text datasets makes of samples; refuse other collators."""
    extra = dict(made.take("dataset_config.extra_kwargs", {}))
    kind = extra.pop("collator_type", "default")
    if kind == "dllm":
        made.put("objective", _DIFFUSION, "collator_type", kind, "its probabilities are fixed")
    elif kind != "default":
        raise RecipeError(
            f"{made.file}: extra_kwargs.collator_type is {as_yaml(kind)}, expected default or dllm; others have no equivalent"
        )
    made.leave_part(extra, "extra_kwargs", "no equivalent: options of its datasets and processors")


def _processor(made: Imported) -> None:
    processor = made.take("processor_config")
    if not isinstance(processor, dict) or not processor.get("processor_name"):
        raise RecipeError(
            f"{made.file}: processor_config is {as_yaml(processor)}, expected a mapping with processor_name and processor_type"
        )
    name = made.place(processor["processor_name"])
    kind = processor.get("processor_type")
    made.put(
        "tokenizer", name, "processor_config", f"processor_name: {processor['processor_name']}"
    )
    if kind in _TEXT_PROCESSORS:
        made.left.append(
            f"processor_config.processor_type: {kind}  (for text: the tokenizer is enough)"
        )
    else:
        made.put("processor", name, "processor_config", f"processor_type: {kind}")
    others = {
        key: value
        for key, value in processor.items()
        if key not in ("processor_name", "processor_type") and value
    }
    made.leave_part(others, "processor_config", "set it in the processor's own files")


# Its key → the key of our video_options.
_VIDEO = {
    "fps": "fps",
    "frame_num": "num_frames",
    "video_max_frames": "max_frames",
    "video_min_pixels": "min_pixels",
    "video_max_pixels": "max_pixels",
}


def _video(made: Imported) -> None:
    """Write which frames of a video are sampled, as far as the configuration says it."""
    strategy = made.take("video_sampling_strategy", "fps")
    if strategy not in ("fps", "frame_num"):
        raise RecipeError(
            f"{made.file}: video_sampling_strategy is {as_yaml(strategy)}, expected fps or frame_num"
        )
    if "processor" not in made.top:
        made.leave_all(dict.fromkeys(("video_sampling_strategy", *_VIDEO), "for text"))
        return
    other = "frame_num" if strategy == "fps" else "fps"
    made.leave(other, f"video_sampling_strategy is {strategy}, and {other} has no effect there")
    options = {}
    for key, ours in _VIDEO.items():
        if key != other and (value := made.take(key)) is not None:
            options[ours] = value
    if strategy == "frame_num" and "num_frames" not in options:
        options["num_frames"] = _FRAMES
    if options:
        given = ", ".join(key for key in ("video_sampling_strategy", *_VIDEO) if key in made.given)
        made.put("video_options", options, given, "as written", "else the processor's own files")


def _data(made: Imported) -> None:
    shape = made.take("dataset_format")
    path = made.take("dataset_path")
    bucket = _bucket(made)
    data_sets = made.listed("datasets")
    for number, member in enumerate(data_sets):
        was = f"datasets[{number}]"
        part = made.part(member, was)
        place = part.pop("path")
        settings = made.settings_of(_without_empty(part), _KEYS, was)
        folder, comment = settings.get("media_root", ("", ""))
        if bucket is not None:
            url, said = bucket
            whole = "/".join(part for part in (url, str(folder).strip("/")) if part)
            settings["media_root"] = (whole, f"{said}, {comment}" if comment else said)
        elif folder:
            settings["media_root"] = (made.place(folder), comment)
        rest = {key: value for key, value in part.items() if key not in _KEYS}
        made.leave_part(rest, was, "no equivalent")
        made.add(place, settings, f"{was}.path")
    if path is not None and data_sets:
        made.leave("dataset_path", "datasets names the data")
    elif path is not None:
        shapes: Settings = {"format": (shape, made.was("dataset_format", shape))} if shape else {}
        if bucket is not None:
            shapes["media_root"] = bucket
        made.add(path, shapes, made.was("dataset_path", path))
    if data_sets:
        made.leave("dataset_format", "each dataset has its own data_type")
    evaluated = made.take("eval_dataset_path")
    if evaluated is not None:
        made.add(evaluated, {}, made.was("eval_dataset_path", evaluated), of_eval=True)


_SCHEMES = {"gcs": "gs", "azure": "az"}


def _bucket(made: Imported) -> tuple[str, str] | None:
    """Return the URL that media are below, and what says so; None if they are files."""
    storage = made.take("object_storage", "none")
    name = made.take("bucket_name")
    if storage in (None, "none"):
        made.leave("bucket_name", "object_storage is none")
        return None
    if storage not in _SCHEMES or not isinstance(name, str):
        raise RecipeError(
            f"{made.file}: object_storage is {as_yaml(storage)} and bucket_name {as_yaml(name)}, expected gcs or azure with the name of a "
            f"bucket or container"
        )
    said = f"{made.was('object_storage', storage)}, {made.was('bucket_name', name)}"
    return f"{_SCHEMES[storage]}://{name.strip('/')}", said


_KEYS = {"data_folder": "media_root", "data_type": "format", "kwargs": "options"}


def _without_empty(part: dict[str, Any]) -> dict[str, Any]:
    """Return a description without empty texts, with which examples say that they have no folder."""
    return {key: value for key, value in part.items() if value not in ("", {})}


def _rows(made: Imported) -> None:
    """Length and packing."""
    is_packed = made.take("packing", False)
    strategy = made.take("packing_strategy")
    length = made.take("packing_length", _LENGTH)
    limit = made.take("max_length")
    if is_packed and limit is not None and limit < length:
        raise RecipeError(
            f"{made.file}: max_length is {limit} and packing_length {length}: rows and the longest sample have one length here; set both "
            f"to one number"
        )
    if is_packed or limit is None:
        note = "tokens, counted and not estimated"
        if not is_packed:
            note = "without packing it cuts and drops nothing there: raise it if a sample is longer"
        made.put("max_length", length, "packing_length", length, note)
        made.leave("max_length", "packing_length decides")
    else:
        made.put("max_length", limit, "max_length", limit)
        made.leave("packing_length", "packing is off, and max_length decides")
    packing = "none"
    if is_packed:
        packing = (
            str(strategy) if str(strategy).startswith("window_") else _PACKING.get(strategy, "")
        )
        if not packing:
            raise RecipeError(
                f"{made.file}: packing_strategy is {as_yaml(strategy)}, expected one of {', '.join(_PACKING)} or window_N; others have no "
                f"equivalent"
            )
        made.put("packing", packing, "packing_strategy", strategy)
    else:
        made.put(
            "packing",
            packing,
            "packing",
            is_packed,
            "best_fit trains the same samples in fewer rows",
        )
        made.leave("packing_strategy", "packing is off")
    is_filtered = made.take("filter_overlong", True)
    drops = is_filtered and (is_packed or limit is not None)
    note = "" if drops else "it keeps longer samples whole, which has no equivalent"
    made.put("on_overlong", "drop" if drops else "error", "filter_overlong", is_filtered, note)
