"""What transformers says about videos: which frames are sampled, how many patches they are, and the text in place of a placeholder.

Video processors import torchvision, which these functions do not use.  So this runs in a process of its own, with an empty torchvision.
Reads a JSON list of cases from standard input, and writes a list of answers.
"""

import importlib.machinery
import json
import sys
import types
from functools import partial
from typing import Any
from unittest.mock import MagicMock


class _Empty(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012 - as of any package
    __version__ = "0.28.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()


def main() -> None:
    for name in (
        "",
        ".io",
        ".transforms",
        ".transforms.functional",
        ".transforms.v2",
        ".transforms.v2.functional",
    ):
        module = _Empty(f"torchvision{name}")
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None, is_package=True)
        sys.modules[module.__name__] = module
    import numpy as np
    from transformers import Qwen3VLProcessor
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
    from transformers.video_utils import VideoMetadata

    def answer(
        family: str, settings: dict[str, Any], frames: int, height: int, width: int, rate: float
    ) -> Any:
        kind = Qwen3VLVideoProcessor if family == "qwen3_vl" else Qwen2VLVideoProcessor
        own = kind(**settings)
        metadata = VideoMetadata(total_num_frames=frames, fps=rate)
        try:
            sampled = own.sample_frames(metadata) if own.do_sample_frames else np.arange(frames)
            metadata.frames_indices = [int(number) for number in sampled]
            patches = own.get_num_of_video_patches(len(sampled), height, width, {})
        except (ValueError, ZeroDivisionError) as error:
            return {"refused": str(error)}
        times = -(-len(sampled) // own.temporal_patch_size)
        found = {"frames": metadata.frames_indices, "tokens": patches // own.merge_size**2}
        if family == "qwen3_vl":
            processor = types.SimpleNamespace(
                video_processor=own,
                video_token="<|video_pad|>",
                vision_start_token="<|vision_start|>",
                vision_end_token="<|vision_end|>",
                _calculate_timestamps=partial(Qwen3VLProcessor._calculate_timestamps, None),
            )
            grid = np.array([[times, patches // times, 1]])
            inputs = {"video_grid_thw": grid, "video_metadata": [metadata]}
            found["text"] = Qwen3VLProcessor.replace_video_token(processor, inputs, 0)
            found["frames"] = found["frames"][: len(sampled)]
        return found

    sys.stdout.write(json.dumps([answer(*case) for case in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()
