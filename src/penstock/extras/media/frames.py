"""Read the frames of a video and the samples of an audio clip that their tokens stand for."""

from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.extras.media.files import Blank, BrokenMedia, open_audio, open_video, resample
from penstock.types import Ints


def read_frames(data: bytes, size: tuple[int, ...], chosen: Ints) -> list[Any]:
    """Return the frames with these numbers, in order, as images.  size: frames, height and width, as the header said."""
    if isinstance(data, Blank):
        return blank_frames(size, len(chosen))
    wanted = set(chosen.tolist())
    found = {}
    number = -1
    with open_video(BytesIO(data)) as container:
        for number, frame in enumerate(container.decode(video=0)):
            if number in wanted:
                if (frame.height, frame.width) != tuple(size[1:]):
                    raise BrokenMedia(
                        f"frame {number} has {frame.height} × {frame.width} pixels (height × width), and the header said "
                        f"{size[1]} × {size[2]} when it was prepared"
                    )
                found[number] = frame.to_image()
            if len(found) == len(wanted):
                break
    if missing := sorted(wanted - found.keys()):
        raise BrokenMedia(
            f"the video has {number + 1} frames that can be decoded, and frame {missing[0]} of {size[0]} is needed; the file is cut short, "
            f"or its header counts wrong: encode it again, and prepare again with refresh=True"
        )
    return [found[number] for number in chosen.tolist()]


def blank_frames(size: tuple[int, ...], count: int) -> list[Any]:
    """Return black frames."""
    from PIL import Image

    return [Image.new("RGB", (size[2], size[1]))] * count


def read_samples(
    data: bytes, size: tuple[int, ...], rate: float, wanted_rate: int
) -> npt.NDArray[np.float32]:
    """Return the mean of the channels of an audio clip at the wanted rate.  size: its own number of samples, at its own rate."""
    if isinstance(data, Blank):
        silence = np.zeros(size[0], np.float32)
        return np.asarray(resample(silence, round(rate), wanted_rate), np.float32)
    with open_audio(BytesIO(data)) as clip:
        own_rate = int(clip.samplerate)
        # before the samples are read: a file that was replaced may hold hours
        _check_clip(int(clip.frames), own_rate, size, rate)
        samples = clip.read(dtype="float32", always_2d=True)
        _check_clip(len(samples), own_rate, size, rate)
    one_channel = np.asarray(samples.mean(axis=1), np.float32)
    return np.asarray(resample(one_channel, own_rate, wanted_rate), np.float32)


def _check_clip(samples: int, own_rate: int, size: tuple[int, ...], rate: float) -> None:
    if samples != size[0] or own_rate != rate:
        raise BrokenMedia(
            f"it has {samples:,} samples at {own_rate} Hz, and had {size[0]:,} at {rate:g} Hz when it was prepared; restore the "
            f"file, or prepare again with refresh=True"
        )
