"""Real processors of transformers with tiny tokenizers, built from their classes, and the folders that they save."""

import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import Any
from unittest.mock import patch

import transformers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Reference
from transformers.models.smolvlm import processing_smolvlm

WORD = "<special-word>"  # a special token that no template prints
CORPUS = [
    "What is in this picture? It shows a house and two dogs, Grüße 你好.\n\nuser assistant system"
] * 20

PRINTED = (
    "{% for c in m.content %}{% if c.type == 'text' %}{{ c.text }}{% elif c.type == 'image' %}IMAGE"
    "{% elif c.type == 'video' %}VIDEO{% elif c.type == 'audio' %}AUDIO{% endif %}{% endfor %}"
)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    + PRINTED
    + "{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def template(image: str = "", video: str = "", audio: str = "") -> str:
    """A chat template that prints these for each part."""
    return CHATML.replace("IMAGE", image).replace("VIDEO", video).replace("AUDIO", audio)


# content is always a list, as in the templates of Idefics3 and SmolVLM
ONLY_PARTS = (
    "<|im_start|>{% for m in messages %}{{ m.role | capitalize }}{% if m.content[0].type == 'image' %}:{% else %}: {% endif %}"
    + PRINTED.replace("IMAGE", "<image>")
    + "<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)


@cache
def _vocabulary() -> Reference:
    made = Reference(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(CORPUS, trainer)
    return made


def tokenizer(special: list[str], named: Mapping[str, str] | None = None) -> Any:
    """A tokenizer of transformers with these special tokens; `named` ones are attributes of it."""
    made = Reference.from_str(_vocabulary().to_str())
    every = [
        "<|im_start|>",
        "<|im_end|>",
        "<end_of_utterance>",
        WORD,
        *special,
        *(named or {}).values(),
    ]
    made.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in dict.fromkeys(every)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", extra_special_tokens=dict(named or {})
    )


def without_video(kind: type[Any], length: str | None = None) -> type[Any]:
    """A processor class that does not ask for a video processor, which needs torchvision.

    transformers saves what the signature of __init__ names.  length: the name of the setting with the tokens of an image.
    """

    def init(
        self: Any,
        image_processor: Any = None,
        tokenizer: Any = None,
        chat_template: Any = None,
        **more: Any,
    ) -> None:
        kind.__init__(self, image_processor, tokenizer, None, chat_template=chat_template, **more)

    if length is not None:
        known = signature(init)
        setting = Parameter(length, Parameter.KEYWORD_ONLY, default=169)
        names = list(known.parameters.values())
        init.__signature__ = known.replace(parameters=[*names[:-1], setting, names[-1]])  # type: ignore[attr-defined]
    return type(kind.__name__, (kind,), {"__init__": init})


def qwen(kind: type[Any], *, patch: int, **limits: int) -> Any:
    image = transformers.Qwen2VLImageProcessorPil(patch_size=patch, size=limits)
    tokens = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    around = "<|vision_start|><|{}_pad|><|vision_end|>"
    text = template(image=around.format("image"), video=around.format("video"))
    return without_video(kind)(image, tokenizer(tokens), chat_template=text)


def qwen2_vl() -> Any:
    return qwen(
        transformers.Qwen2VLProcessor, patch=14, shortest_edge=56 * 56, longest_edge=28 * 28 * 1280
    )


def qwen2_5_vl() -> Any:
    return qwen(
        transformers.Qwen2_5_VLProcessor,
        patch=14,
        shortest_edge=4 * 28 * 28,
        longest_edge=28 * 28 * 400,
    )


def qwen3_vl() -> Any:
    return qwen(transformers.Qwen3VLProcessor, patch=16, shortest_edge=65536, longest_edge=1 << 20)


_TILES = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]


def idefics3() -> Any:
    image = transformers.Idefics3ImageProcessorPil(
        size={"longest_edge": 4 * 64}, max_image_size={"longest_edge": 64}
    )
    made = tokenizer(["<fake_token_around_image>", "<image>", "<global-img>", *_TILES])
    return transformers.Idefics3Processor(image, made, image_seq_len=5, chat_template=ONLY_PARTS)


def smolvlm() -> Any:
    processing_smolvlm.num2words = (
        processing_smolvlm.num2words or str
    )  # asked for, and used for videos only
    image = transformers.SmolVLMImageProcessorPil(
        size={"longest_edge": 4 * 64}, max_image_size={"longest_edge": 64}
    )
    made = tokenizer(["<fake_token_around_image>", "<image>", "<global-img>", *_TILES])
    kind = without_video(transformers.SmolVLMProcessor, "image_seq_len")
    return kind(image, made, image_seq_len=4, chat_template=ONLY_PARTS)


def gemma3() -> Any:
    named = {
        "boi_token": "<start_of_image>",
        "eoi_token": "<end_of_image>",
        "image_token": "<image_soft_token>",
    }
    image = transformers.Gemma3ImageProcessorPil(size={"height": 32, "width": 32})
    made = tokenizer([], named)
    return transformers.Gemma3Processor(
        image, made, image_seq_length=7, chat_template=template("<start_of_image>")
    )


def llava() -> Any:
    size = {"height": 56, "width": 56}
    image = transformers.CLIPImageProcessorPil(size={"shortest_edge": 56}, crop_size=size)
    made = tokenizer([], {"image_token": "<image>"})
    return transformers.LlavaProcessor(
        image,
        made,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=template("<image>"),
    )


def internvl() -> Any:
    named = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }
    image = transformers.GotOcr2ImageProcessorPil(size={"height": 32, "width": 32}, max_patches=6)
    kind = without_video(transformers.InternVLProcessor, "image_seq_length")
    return kind(
        image, tokenizer([], named), image_seq_length=3, chat_template=template("<IMG_CONTEXT>\n")
    )


def _pixtral_class() -> Any:
    """The processor's module imports one function from the torchvision module; the PIL module has the same one."""
    place = "transformers.models.pixtral"
    pil = import_module(f"{place}.image_processing_pil_pixtral")
    with patch.dict(sys.modules, {f"{place}.image_processing_pixtral": pil}):
        return import_module(f"{place}.processing_pixtral").PixtralProcessor


def pixtral() -> Any:
    image = transformers.PixtralImageProcessorPil(
        size={"longest_edge": 96}, patch_size={"height": 16, "width": 16}
    )
    made = tokenizer(["[IMG]", "[IMG_BREAK]", "[IMG_END]"])
    return _pixtral_class()(
        image, made, patch_size=8, spatial_merge_size=2, chat_template=template("[IMG]")
    )


def qwen2_audio() -> Any:
    made = tokenizer(["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"])
    extractor = transformers.WhisperFeatureExtractor(feature_size=8)
    text = template(audio="<|audio_bos|><|AUDIO|><|audio_eos|>\n")
    return transformers.Qwen2AudioProcessor(extractor, made, chat_template=text)


OMNI_TOKENS = {
    "image_token": "<|IMAGE|>",
    "audio_token": "<|AUDIO|>",
    "video_token": "<|VIDEO|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}


def qwen2_5_omni() -> Any:
    """Qwen2.5-Omni's processor without videos, which need torchvision."""
    kind = transformers.Qwen2_5OmniProcessor

    def init(
        self: Any,
        image_processor: Any = None,
        feature_extractor: Any = None,
        tokenizer: Any = None,
        chat_template: Any = None,
        **more: Any,
    ) -> None:
        base = kind.__mro__[1]  # kind itself names a video processor by its place
        base.__init__(
            self, image_processor, feature_extractor, tokenizer, chat_template=chat_template, **more
        )
        for name, token in OMNI_TOKENS.items():
            setattr(self, name, token)
            setattr(self, f"{name}_id", tokenizer.convert_tokens_to_ids(token))

    omni = type(kind.__name__, (kind,), {"__init__": init})
    image = transformers.Qwen2VLImageProcessorPil(
        patch_size=14, size={"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}
    )
    extractor = transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=40)
    text = template(
        image="<|vision_bos|><|IMAGE|><|vision_eos|>", audio="<|audio_bos|><|AUDIO|><|audio_eos|>"
    )
    return omni(image, extractor, tokenizer([], OMNI_TOKENS), chat_template=text)


VISION: dict[str, Callable[[], Any]] = {
    made.__name__: made
    for made in (
        qwen2_vl,
        qwen2_5_vl,
        qwen3_vl,
        idefics3,
        smolvlm,
        gemma3,
        llava,
        internvl,
        pixtral,
    )
}


def save(made: Any, folder: Path) -> Path:
    """The processor's folder: its tokenizer and chat template are there, too."""
    made.save_pretrained(folder)
    return folder
