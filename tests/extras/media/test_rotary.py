"""Multimodal rotary positions equal those of transformers' own models, for random samples with images and videos."""

import random
from typing import Any

import numpy as np
import pytest

from penstock.extras.media.rotary import Grid, rotary_positions

TOKENS_PER_SECOND, MERGE = 3, 2

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


def config(family: str) -> Any:
    import transformers

    text = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 8,
    }
    text |= {
        "num_key_value_heads": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
    }
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_heads": 2,
        "out_hidden_size": 32,
    }
    if family == "Qwen2VL":
        vision = {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2}
    if family == "Qwen2_5_VL":
        vision["tokens_per_second"] = TOKENS_PER_SECOND
    if family == "Qwen3VL":
        vision["deepstack_visual_indexes"] = []
        text["head_dim"] = 16
    return getattr(transformers, f"{family}Config")(text_config=text, vision_config=vision)


def sample(
    rng: random.Random, family: str
) -> tuple[list[int], list[tuple[int, int, int]], list[Any], list[Any], list[float]]:
    """Token types, and the grids of images and of videos; (kind, start, grid) of each run of placeholders."""
    types: list[int] = [0] * rng.randrange(4)
    runs: list[Any] = []
    grids: dict[int, list[Any]] = {1: [], 2: []}
    seconds: list[float] = []
    for _ in range(rng.randrange(1, 5)):
        kind = rng.choice((1, 2))
        times = 1 if kind == 1 else rng.randrange(1, 7)
        height, width = rng.randrange(1, 9), rng.randrange(1, 9)
        grids[kind].append([times, MERGE * height, MERGE * width])
        interval = 1.0
        if kind == 2:
            seconds.append(rng.choice((0.5, 1.0, 2 / 1.7, 2 / 23.976, 1.3)))
            interval = (
                float(np.float32(seconds[-1]) * TOKENS_PER_SECOND)
                if family == "Qwen2_5_VL"
                else 1.0
            )
        moments = [(1, height, width)] * times if family == "Qwen3VL" else [(times, height, width)]
        for shape in moments:  # Qwen3-VL writes a time stamp before each moment
            types += [0] * rng.randrange(1, 6)
            runs.append(Grid(start=len(types), shape=shape, interval=interval))
            types += [kind] * (shape[0] * height * width)
    return types + [0] * rng.randrange(6), runs, grids[1], grids[2], seconds


@pytest.mark.parametrize("family", ["Qwen2VL", "Qwen2_5_VL", "Qwen3VL"])
def test_positions_equal_those_of_the_model(family: str) -> None:
    import transformers

    with torch.device("meta"):
        model = getattr(transformers, f"{family}Model")(config(family))
    rng = random.Random(7)
    for _ in range(300):
        types, runs, images, videos, seconds = sample(rng, family)
        options: dict[str, Any] = {}
        if family == "Qwen2_5_VL" and videos:
            options["second_per_grid_ts"] = torch.tensor(seconds)
        expected, _ = model.get_rope_index(
            torch.zeros(1, len(types), dtype=torch.int64),
            torch.tensor([types]),
            image_grid_thw=torch.tensor(images) if images else None,
            video_grid_thw=torch.tensor(videos) if videos else None,
            **options,
        )
        found = rotary_positions(len(types), runs)
        assert found.tolist() == expected[:, 0].tolist()


def test_a_sample_without_media_counts_its_tokens_in_all_rows() -> None:
    assert rotary_positions(5, []).tolist() == [[0, 1, 2, 3, 4]] * 3
