"""Packed rows with images of other families: a sample has the logits that it has alone; Gemma 3, where it has not, is found out."""

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import penstock as ps  # noqa: E402
from penstock.errors import PlanError  # noqa: E402
from penstock.extras.trainers.isolation import check_isolation  # noqa: E402
from penstock.extras.trainers.model_inputs import ModelInputs  # noqa: E402
from tests.extras.media import vlm  # noqa: E402
from tests.extras.media.test_media_families import SHAPES, make  # noqa: E402

VISION = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
TOKENS = {
    "llava": {},
    "internvl": {"image_seq_length": 16},
    "idefics3": {"image_seq_len": 4},
    "gemma3": {"image_seq_length": 4},
}


def tiny(family: str, tokenizer: Any) -> Any:
    """A random model whose images have as many features as TOKENS says."""
    token = tokenizer.convert_tokens_to_ids
    text = {
        "vocab_size": len(tokenizer) + 8,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": None,
    }
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if family == "llava":
        vision = transformers.CLIPVisionConfig(
            **VISION, image_size=56, patch_size=14, projection_dim=32
        )
        config = transformers.LlavaConfig(
            vision_config=vision,
            text_config=transformers.LlamaConfig(**text),
            image_token_id=token("<image>"),
            image_token_index=token("<image>"),
            vision_feature_select_strategy="default",
            vision_feature_layer=-1,
        )
        return transformers.LlavaForConditionalGeneration(config).eval()
    if family == "internvl":
        config = transformers.InternVLConfig(
            vision_config={**VISION, "image_size": [32, 32], "patch_size": [4, 4]},
            downsample_ratio=0.5,
            text_config=transformers.Qwen2Config(**text),
            image_token_id=token("<IMG_CONTEXT>"),
        )
        return transformers.InternVLForConditionalGeneration(config).eval()
    if family == "idefics3":
        config = transformers.Idefics3Config(
            vision_config={**VISION, "image_size": 64, "patch_size": 16},
            text_config=transformers.LlamaConfig(**text),
            image_token_id=token("<image>"),
            scale_factor=2,
            pad_token_id=None,
        )
        return transformers.Idefics3ForConditionalGeneration(config).eval()
    config = transformers.Gemma3Config(
        vision_config={**VISION, "image_size": 32, "patch_size": 8},
        mm_tokens_per_image=4,
        text_config=transformers.Gemma3TextConfig(**text, head_dim=8),
        image_token_id=token("<image_soft_token>"),
        boi_token_index=token("<start_of_image>"),
        eoi_token_index=token("<end_of_image>"),
    )
    return transformers.Gemma3ForConditionalGeneration(config).eval()


def prepared(folder: Path, family: str) -> tuple[Any, Any]:
    processor, _ = make(folder, family)
    path = folder / "model" / "processor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | TOKENS[family]))
    return vlm.prepare(folder), tiny(family, processor.tokenizer)


def begins_of(batch: Any) -> list[int]:
    positions, numbers = batch["position_ids"].reshape(-1), batch["seq_idx"].reshape(-1)
    return ((positions == 0) & (numbers >= 0)).nonzero()[:, 0].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("family", ["llava", "internvl", "idefics3"])
def test_packed_samples_have_the_logits_that_they_have_alone(
    family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, model = prepared(tmp_path, family)
    inputs, alone, seen = ModelInputs(model), {}, 0
    with torch.no_grad():
        for batch in ps.Loader(store, batch_size=1, max_length=2048, packing="none", shuffle=False):
            alone[int(batch.rows.spans["sample"][0])] = model(
                **inputs(batch), use_cache=False
            ).logits[0]
        for batch in ps.Loader(store, batch_size=2, max_length=1024, seed=1):
            logits = model(**inputs(batch)).logits.flatten(0, 1)
            for begin, span in zip(begins_of(batch), batch.rows.spans, strict=True):
                own = alone[int(span["sample"])][: int(span["stop"])]
                torch.testing.assert_close(logits[begin : begin + len(own)], own, rtol=0, atol=2e-6)
                seen += 1
    assert seen == len(SHAPES)
    check_isolation(model, ps.Loader(store, batch_size=2, max_length=1024))
    assert not caplog.records


def test_the_isolation_check_finds_that_gemma_3_looks_in_the_wrong_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were the loader to pack it: transformers reads where images are from the first sample of a row, whose images have other places."""
    store, model = prepared(tmp_path, "gemma3")
    monkeypatch.setattr("penstock.extras.media.stage.refuse_packed", lambda *_: None)
    with pytest.raises(
        PlanError, match="does not keep the samples of a row apart: sample 2 of a row"
    ):
        check_isolation(model, ps.Loader(store, batch_size=2, max_length=1024))
