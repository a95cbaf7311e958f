"""Images of every family, videos and audio: batches equal what the family's own processor makes."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")
pytest.importorskip("torch")

import penstock as ps
from penstock.errors import PlanError
from tests.extras.media import processors, vlm

SHAPES = [
    [(50, 90), (120, 40)],
    [(64, 64)],
    [],
    [(33, 200)],
    [(20, 30), (31, 47), (90, 88)],
    [(64, 61)],
]


def messages(images: list[str], number: int) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"type": "text", "text": f"What is in picture {number}?"}]
    parts += [{"type": "image", "image": path} for path in images]
    answer = [{"type": "text", "text": "It shows " + "a house " * (number + 1)}]
    return [{"role": "user", "content": parts}, {"role": "assistant", "content": answer}]


def make(folder: Path, family: str) -> tuple[Any, list[list[dict[str, Any]]]]:
    """The family's processor, and conversations whose images are in the folder."""
    processor = processors.VISION[family]()
    processors.save(processor, folder / "model")
    talks = []
    for number, shapes in enumerate(SHAPES):
        names = [f"{number}-{place}.png" for place in range(len(shapes))]
        for place, (name, shape) in enumerate(zip(names, shapes, strict=True)):
            vlm.write_image(folder / name, *shape, seed=10 * number + place)
        talks.append(messages(names, number))
    (folder / "data.jsonl").write_text(
        "".join(json.dumps({"messages": talk}) + "\n" for talk in talks)
    )
    return processor, talks


def opened(folder: Path, talk: list[dict[str, Any]]) -> list[Any]:
    from transformers.image_utils import load_image

    return [
        load_image(str(folder / part["image"]))
        for part in talk[0]["content"]
        if part["type"] == "image"
    ]


@pytest.mark.parametrize("family", processors.VISION)
def test_unpacked_batches_equal_the_processor_bit_by_bit(family: str, tmp_path: Path) -> None:
    processor, talks = make(tmp_path, family)
    store = vlm.prepare(tmp_path)
    loader = ps.Loader(
        store, batch_size=2, max_length=2048, packing="none", shuffle=False, output="numpy"
    )
    batches = list(loader)
    assert len(batches) == 3
    for number, batch in enumerate(batches):
        some = talks[2 * number : 2 * number + 2]
        render = (
            processor.tokenizer.apply_chat_template
        )  # the processor's own asks for a video processor
        texts = [
            render(talk, chat_template=processor.chat_template, tokenize=False) for talk in some
        ]
        images = [opened(tmp_path, talk) for talk in some]
        flat = [image for several in images for image in several]
        nested = images if family in ("idefics3", "smolvlm", "gemma3") else flat
        for row, (text, own) in enumerate(zip(texts, images, strict=True)):
            alone = processor(text=[text], images=own or None)
            for name in {"input_ids", "token_type_ids"} & set(batch):
                found = list(alone[name][0])
                assert batch[name][row, : len(found)].tolist() == found
        processor.tokenizer.pad_token = "<|im_end|>"
        made = processor(text=texts, images=nested, padding=True, return_tensors="pt")
        names = set(made) - {"input_ids", "attention_mask", "mm_token_type_ids"}
        known = {"labels", "position_ids", "seq_idx", "use_cache", "cu_seqlens", "max_seqlen"}
        assert names == set(batch) - {"input_ids", "attention_mask", *known}
        for name in names - {"token_type_ids"}:
            found, own = np.asarray(batch[name]), np.asarray(made[name])
            assert found.dtype == own.dtype and np.array_equal(found, own), name


@pytest.mark.parametrize("form", [{}, {"padding_free": True, "packing": "none"}], ids=str)
def test_gemma_3_is_not_packed_with_images(form: dict[str, Any], tmp_path: Path) -> None:
    make(tmp_path, "gemma3")
    with pytest.raises(
        PlanError, match=r"Gemma 3 cannot train images in packed rows: .*set packing='none'"
    ):
        list(ps.Loader(vlm.prepare(tmp_path), batch_size=2, max_length=1024, **form))


@pytest.mark.parametrize("family", [family for family in processors.VISION if family != "gemma3"])
@pytest.mark.parametrize("form", [{}, {"padding_free": True}], ids=str)
def test_packed_batches_hold_the_same_images(
    family: str, form: dict[str, Any], tmp_path: Path
) -> None:
    make(tmp_path, family)
    store = vlm.prepare(tmp_path)
    rng = random.Random(0)
    sizes = []
    for batch in ps.Loader(
        store, batch_size=2, max_length=1024, seed=rng.randrange(9), output="numpy", **form
    ):
        sizes.append(sum(len(row) for row in batch.media))
        if family in ("idefics3", "smolvlm") and sizes[-1]:
            assert batch["pixel_values"].shape[:2] == batch["pixel_attention_mask"].shape[:2]
            assert len(batch["pixel_values"]) == len(batch["input_ids"])
    assert sum(sizes) == sum(map(len, SHAPES))
