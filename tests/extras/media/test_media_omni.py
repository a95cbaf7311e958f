"""Images and audio in one sample: Qwen2.5-Omni's own processor, its positions, packed and masked."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

pytest.importorskip("transformers")
pytest.importorskip("torch")

import torch

import penstock as ps
from penstock.errors import TemplateError
from penstock.extras.trainers.isolation import check_isolation
from penstock.extras.trainers.model_inputs import ModelInputs
from tests.extras.media import processors, vlm

SHAPES = [("image", "audio"), ("audio",), (), ("image",), ("audio", "image", "audio", "image")]


def talk(number: int, kinds: tuple[str, ...]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"type": "text", "text": f"What is {number}?"}]
    for place, kind in enumerate(kinds):
        name = f"{number}-{place}.{'wav' if kind == 'audio' else 'png'}"
        parts += [{"type": kind, kind: name}, {"type": "text", "text": "and"}]
    answer = [{"type": "text", "text": "a house " * (number + 1)}]
    return [{"role": "user", "content": parts}, {"role": "assistant", "content": answer}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("omni")
    processors.save(processors.qwen2_5_omni(), folder / "model")
    talks = [talk(number, kinds) for number, kinds in enumerate(SHAPES)]
    rng = np.random.default_rng(0)
    for number, messages in enumerate(talks):
        for place, part in enumerate(messages[0]["content"]):
            if part["type"] == "image":
                vlm.write_image(folder / part["image"], 60 + 9 * place, 90, seed=number)
            elif part["type"] == "audio":
                samples = rng.uniform(-0.5, 0.5, 4_000 * (place + number + 1))
                soundfile.write(folder / part["audio"], samples, 16_000)
    lines = "".join(json.dumps({"messages": messages}) + "\n" for messages in talks)
    (folder / "data.jsonl").write_text(lines)
    return folder


def media_of(folder: Path, messages: list[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
    from transformers.image_utils import load_image

    parts = messages[0]["content"]
    images = [load_image(str(folder / part["image"])) for part in parts if part["type"] == "image"]
    clips = [
        soundfile.read(folder / part["audio"], dtype="float32")[0]
        for part in parts
        if part["type"] == "audio"
    ]
    return images, clips


def test_samples_equal_the_processor_bit_by_bit(folder: Path) -> None:
    processor = processors.qwen2_5_omni()
    options = {"packing": "none", "shuffle": False, "max_length": 4096, "output": "numpy"}
    loader = ps.Loader(vlm.prepare(folder), batch_size=1, rank=0, world_size=1, **options)
    batches = list(loader)
    assert len(batches) == len(SHAPES)
    for number, (batch, kinds) in enumerate(zip(batches, SHAPES, strict=True)):
        messages = talk(number, kinds)
        images, clips = media_of(folder, messages)
        text = processor.tokenizer.apply_chat_template(
            messages, chat_template=processor.chat_template, tokenize=False
        )
        own = processor(
            text=[text], images=images or None, audio=clips or None, return_tensors="np"
        )
        size = len(own["input_ids"][0])
        assert batch["input_ids"][0, :size].tolist() == own["input_ids"][0].tolist()
        names = {"pixel_values", "image_grid_thw", "input_features", "feature_attention_mask"}
        assert names & set(batch) == names & set(own)
        for name in names & set(own):
            expected = np.asarray(own[name])
            assert np.array_equal(np.asarray(batch[name]).astype(expected.dtype), expected), name
        markers = set(
            processor.tokenizer.convert_tokens_to_ids(list(processors.OMNI_TOKENS.values()))
        )
        trained = batch["input_ids"][batch["labels"] != -100]
        assert trained.size and not markers & set(trained.tolist())


def positions_of_transformers(batch: Any, ids: list[int], token: Any) -> Any:
    from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
        Qwen2_5OmniPreTrainedModelForConditionalGeneration as Positions,
    )

    class Config:
        image_token_id = token("<|IMAGE|>")
        video_token_id = token("<|VIDEO|>")
        audio_token_id = token("<|AUDIO|>")
        vision_start_token_id = token("<|vision_bos|>")
        audio_start_token_id = token("<|audio_bos|>")
        position_id_per_seconds = 25
        seconds_per_chunk = 2.0

    made = Positions.__new__(Positions)
    torch.nn.Module.__init__(made)
    made.config = Config()
    made.spatial_merge_size = 2
    grids = batch.get("image_grid_thw")
    if grids is None:
        return np.broadcast_to(np.arange(len(ids)), (3, len(ids)))
    lengths = batch.get("feature_attention_mask")
    found, _ = made.get_rope_index(
        torch.tensor([ids]),
        torch.tensor(grids),
        None,
        torch.ones(1, len(ids)),
        audio_seqlens=None if lengths is None else torch.tensor(lengths.sum(-1)),
    )
    return found[:, 0].numpy()


def test_positions_are_those_of_transformers(folder: Path) -> None:
    tokenizer = processors.qwen2_5_omni().tokenizer
    options = {"packing": "none", "shuffle": False, "max_length": 4096, "output": "numpy"}
    store = vlm.prepare(folder)
    for number, batch in enumerate(ps.Loader(store, batch_size=1, rank=0, world_size=1, **options)):
        ids = store[number].input_ids.tolist()
        expected = positions_of_transformers(batch, ids, tokenizer.convert_tokens_to_ids)
        assert np.array_equal(batch["position_ids"][1:, 0, : len(ids)], expected)


def test_packed_rows_hold_the_same_media(folder: Path) -> None:
    options = {"max_length": 4096, "shuffle": False, "output": "numpy", "rank": 0, "world_size": 1}
    store = vlm.prepare(folder)
    alone = list(ps.Loader(store, batch_size=1, packing="none", **options))
    (packed,) = ps.Loader(store, batch_size=1, packing="first_fit", **options)
    for name in ("pixel_values", "image_grid_thw", "input_features", "feature_attention_mask"):
        order = packed.rows.spans["sample"].tolist()
        parts = [alone[sample][name] for sample in order if name in alone[sample]]
        assert np.array_equal(packed[name], np.concatenate(parts)), name


def tiny_thinker(tokenizer: Any) -> Any:
    """A random model with the tokens of the tokenizer."""
    from transformers import Qwen2_5OmniThinkerForConditionalGeneration as Thinker
    from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import (
        Qwen2_5OmniThinkerConfig,
    )

    token = tokenizer.convert_tokens_to_ids
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "mrope_section": [1, 1, 2],
        },
        "bos_token_id": None,
        "eos_token_id": token("<|im_end|>"),
        "pad_token_id": None,
    }
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_heads": 2,
        "out_hidden_size": 32,
        "window_size": 112,
        "fullatt_block_indexes": [1],
    }
    audio = {
        "num_mel_bins": 8,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 32,
        "d_model": 32,
        "output_dim": 32,
    }
    ids = {
        f"{kind}_token_index": token(f"<|{kind.upper()}|>") for kind in ("image", "video", "audio")
    }
    ids |= {
        f"{kind}_token_id": token(f"<|{kind.upper()}|>") for kind in ("image", "video", "audio")
    }
    for kind in ("vision", "audio"):
        ids |= {
            f"{kind}_start_token_id": token(f"<|{kind}_bos|>"),
            f"{kind}_end_token_id": token(f"<|{kind}_eos|>"),
        }
    config = Qwen2_5OmniThinkerConfig(
        text_config=text, vision_config=vision, audio_config=audio, **ids
    )
    torch.manual_seed(0)
    return Thinker(config).eval()


@pytest.mark.parametrize("form", [{"packing": "first_fit"}, {"padding_free": True}], ids=str)
def test_packed_samples_have_the_logits_that_they_have_alone(
    folder: Path, form: dict[str, Any]
) -> None:
    processor = processors.qwen2_5_omni()
    model = tiny_thinker(processor.tokenizer)
    alone = []
    for number, kinds in enumerate(SHAPES):
        messages = talk(number, kinds)
        images, clips = media_of(folder, messages)
        text = processor.tokenizer.apply_chat_template(
            messages, chat_template=processor.chat_template, tokenize=False
        )
        own = processor(
            text=[text], images=images or None, audio=clips or None, return_tensors="pt"
        )
        taken = {
            name: value
            for name, value in own.items()
            if name not in ("num_audio_tokens", "mm_token_type_ids")
        }
        with torch.no_grad():
            alone.append(model(**taken, use_cache=False).logits[0])
    loader = ps.Loader(
        vlm.prepare(folder), batch_size=1, max_length=1500, rank=0, world_size=1, **form
    )
    assert check_isolation(model, loader)
    inputs = ModelInputs(model)
    seen = 0
    for batch in loader:
        with torch.no_grad():
            logits = model(**inputs(batch)).logits.flatten(0, 1)
        begins = (batch["position_ids"][0].reshape(-1) == 0) & (batch["seq_idx"].reshape(-1) >= 0)
        for begin, span in zip(begins.nonzero()[:, 0].tolist(), batch.rows.spans, strict=True):
            own = alone[int(span["sample"])]
            torch.testing.assert_close(logits[begin : begin + len(own)], own, rtol=0, atol=2e-6)
            seen += 1
    assert seen == len(SHAPES)


def test_a_clip_that_is_gone_is_silence_and_its_sample_is_not_trained(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = vlm.prepare(folder)
    clip = folder / "0-1.wav"
    whole = clip.read_bytes()
    clip.write_bytes(b"RIFF no clip")
    try:
        options = {"packing": "none", "shuffle": False, "max_length": 4096, "output": "numpy"}
        loader = ps.Loader(store, batch_size=1, rank=0, world_size=1, **options)
        with caplog.at_level(logging.WARNING, "penstock"):
            batches = list(loader)
    finally:
        clip.write_bytes(whole)
    assert (batches[0]["labels"] == -100).all() and (batches[1]["labels"] != -100).any()
    assert "pixel_values" in batches[0] and "input_features" in batches[0]
    assert loader.metrics.as_dict()["media"]["masked"] == 1 and "0-1.wav" in caplog.text


def test_video_and_too_long_clips_are_refused(folder: Path, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "long.wav", np.zeros(41 * 16_000), 16_000)
    for part, message in (
        ({"type": "video", "video": "v.mp4"}, "takes image, audio, not video"),
        (
            {"type": "audio", "audio": "long.wav"},
            "is 41.0 s long, but the processor cuts clips at 40 s",
        ),
    ):
        record = {
            "messages": [
                {"role": "user", "content": [part]},
                {"role": "assistant", "content": "no"},
            ]
        }
        with pytest.raises(TemplateError, match=message):
            ps.prepare(
                [record],
                tokenizer=folder / "model",
                media_root=str(tmp_path),
                cache_dir=tmp_path / "cache",
                num_proc=1,
            )
