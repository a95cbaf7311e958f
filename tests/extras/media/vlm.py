"""Tiny vision-language models, their processors in folders, and records with images, all made here: nothing is downloaded."""

import json
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

FAMILIES = ("qwen2_5_vl", "qwen3_vl")
WORDS = ["fox", "dog", "runs", "over", "away", "lazy", "red", "blue"]
SPECIAL = [
    *(
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|vision_start|>",
        "<|vision_end|>",
        "<|vision_pad|>",
    ),
    *("<|image_pad|>", "<|video_pad|>"),
]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for c in m['content'] %}{% if c['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% elif c['type'] == 'video' %}"
    "<|vision_start|><|video_pad|><|vision_end|>{% elif c['type'] == 'text' %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOKENS_PER_SECOND = 3
PATCH = {"qwen2_vl": 14, "qwen2_5_vl": 14, "qwen3_vl": 16}
CLASSES = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL"}


@cache
def trained_tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(
        [" ".join(WORDS) + " user assistant system what is this"] * 20, trainer
    )
    return made


def image_processor(family: str) -> Any:
    from transformers import Qwen2VLImageProcessorPil

    patch = PATCH[family]
    size = {"shortest_edge": (2 * patch) ** 2, "longest_edge": 12 * (2 * patch) ** 2}
    options: dict[str, Any] = {"patch_size": patch, "merge_size": 2, "size": size}
    if family == "qwen3_vl":
        options |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    return Qwen2VLImageProcessorPil(**options)


def video_settings(family: str) -> dict[str, Any]:
    """What video_preprocessor_config.json says: two frames a second, of few pixels."""
    image, patch = image_processor(family), PATCH[family]
    same = (
        "patch_size",
        "merge_size",
        "temporal_patch_size",
        "image_mean",
        "image_std",
        "rescale_factor",
    )
    sizes = {"shortest_edge": (2 * patch) ** 2, "longest_edge": 80 * (2 * patch) ** 2}
    sampled = {"do_sample_frames": True, "fps": 2.0, "min_frames": 2, "max_frames": 12}
    return {name: getattr(image, name) for name in same} | {"size": sizes, "resample": 3, **sampled}


def processor_folder(folder: Path, family: str) -> Path:
    """A folder as a model has it: tokenizer, chat template, image and video processor, and the model's config."""
    folder.mkdir(parents=True, exist_ok=True)
    trained_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    described = image_processor(family).to_dict() | {
        "processor_class": f"{CLASSES[family]}Processor"
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(described))
    (folder / "video_preprocessor_config.json").write_text(json.dumps(video_settings(family)))
    seconds = {"tokens_per_second": TOKENS_PER_SECOND} if family == "qwen2_5_vl" else {}
    (folder / "config.json").write_text(
        json.dumps({"model_type": family, "vision_config": seconds})
    )
    return folder


def whole_processor(folder: Path, family: str) -> Any:
    """transformers' own processor, without videos, which need torchvision."""
    import transformers

    base = getattr(transformers, f"{CLASSES[family]}Processor")

    class NoVideo(base):  # type: ignore[misc, valid-type]
        def __init__(
            self,
            image_processor: Any = None,
            tokenizer: Any = None,
            chat_template: Any = None,
            **_: Any,
        ) -> None:
            super().__init__(image_processor, tokenizer, None, chat_template=chat_template)

    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    return NoVideo(image_processor(family), tokenizer, chat_template=TEMPLATE)


def write_image(path: Path, height: int, width: int, seed: int, **options: Any) -> Path:
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


def write_video(path: Path, frames: int, height: int, width: int, rate: int, seed: int) -> Path:
    """A video of slowly changing colours, which is kept well by its compression."""
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    base = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        for number in range(frames):
            pixels = np.roll(base, 3 * number, axis=0)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return path


def conversation(rng: random.Random, images: Sequence[str]) -> dict[str, Any]:
    """One turn with these images among its text."""
    parts: list[dict[str, Any]] = [
        {"type": "text", "text": " ".join(rng.choices(WORDS, k=rng.randrange(1, 6)))}
    ]
    for path in images:
        kind = "video" if path.endswith(".mp4") else "image"
        parts.append({"type": kind, kind: path})
        if rng.random() < 0.5:
            parts.append({"type": "text", "text": rng.choice(WORDS)})
    answer = " ".join(rng.choices(WORDS, k=rng.randrange(2, 8)))
    return {
        "messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": answer}]
    }


def make_data(folder: Path, family: str, *, count: int = 24, seed: int = 5) -> Path:
    """A model's folder, images and data.jsonl: records with no image, one or two."""
    rng = random.Random(seed)
    processor_folder(folder / "model", family)
    lines = []
    for number in range(count):
        images = []
        for place in range(number % 3):
            name = f"images/{number}-{place}.png"
            write_image(
                folder / name,
                rng.randrange(20, 120),
                rng.randrange(20, 120),
                seed=number * 7 + place,
            )
            images.append(name)
        lines.append(conversation(rng, images))
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return data


def family_of(folder: Path) -> str:
    """The family of the model's folder that `make_data` wrote."""
    described = json.loads((folder / "model" / "preprocessor_config.json").read_text())
    return next(
        family
        for family, name in CLASSES.items()
        if described["processor_class"] == f"{name}Processor"
    )


def prepare(folder: Path, **options: Any) -> Any:
    import penstock as ps

    given = {
        "tokenizer": folder / "model",
        "cache_dir": folder / "cache",
        "num_proc": 1,
        "media_root": str(folder),
    }
    return ps.prepare(folder / "data.jsonl", **{**given, **options})


def tiny_model(family: str, **options: Any) -> Any:
    """A random model with the tokens of the tokenizer above."""
    import torch
    import transformers

    tokens = trained_tokenizer()
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [1, 1, 2]}
    text: dict[str, Any] = {
        "vocab_size": tokens.get_vocab_size(),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "bos_token_id": None,
        "eos_token_id": tokens.token_to_id("<|im_end|>"),
        "pad_token_id": None,
        "rope_parameters": rope,
    }
    vision: dict[str, Any] = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_heads": 2,
        "out_hidden_size": 32,
    }
    if family == "qwen2_5_vl":
        vision |= {
            "window_size": 112,
            "fullatt_block_indexes": [1],
            "tokens_per_second": TOKENS_PER_SECOND,
        }
    if family == "qwen3_vl":
        vision |= {"num_position_embeddings": 64, "deepstack_visual_indexes": [0], "patch_size": 16}
        text |= {"head_dim": 8}
    if family == "qwen2_vl":
        vision = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 2}
    ids = {f"{kind}_token_id": tokens.token_to_id(f"<|{kind}_pad|>") for kind in ("image", "video")}
    ids |= {
        f"vision_{side}_token_id": tokens.token_to_id(f"<|vision_{side}|>")
        for side in ("start", "end")
    }
    config = getattr(transformers, f"{CLASSES[family]}Config")(
        text_config=text, vision_config=vision, **ids
    )
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return getattr(transformers, f"{CLASSES[family]}ForConditionalGeneration")(config, **options)
