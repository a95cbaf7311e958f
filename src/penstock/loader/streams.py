"""Read the frames of a video and the samples of an audio clip that their tokens stand for."""

from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import MediaError
from penstock.types import Ints


def read_frames(data: bytes, size: tuple[int, ...], chosen: Ints) -> list[Any]:
    """Return the frames with these numbers, in order, as images.  size: frames, height and width, as the header said."""
    try:
        import av
    except ImportError as error:
        raise MediaError("decoding videos needs PyAV; install penstock[video]") from error
    wanted = set(chosen.tolist())
    found = {}
    number = -1
    with av.open(BytesIO(data)) as container:
        for number, frame in enumerate(container.decode(video=0)):
            if number in wanted:
                if (frame.height, frame.width) != tuple(size[1:]):
                    raise MediaError(
                        f"frame {number} has {frame.height} × {frame.width} pixels (height × width), and the header said "
                        f"{size[1]} × {size[2]} when it was prepared"
                    )
                found[number] = frame.to_image()
            if len(found) == len(wanted):
                break
    if missing := sorted(wanted - found.keys()):
        raise MediaError(
            f"the video has {number + 1} frames that can be decoded, and frame {missing[0]} of {size[0]} is needed; the file is cut short, "
            f"or its header counts wrong: encode it again, and prepare again with refresh=True"
        )
    return [found[number] for number in chosen.tolist()]


def read_samples(
    data: bytes, size: tuple[int, ...], rate: float, wanted_rate: int
) -> npt.NDArray[np.float32]:
    """Return the mean of the channels of an audio clip, which must have the wanted rate.  size: its number of samples."""
    try:
        import soundfile
    except ImportError as error:
        raise MediaError("decoding audio needs soundfile; install penstock[audio]") from error
    samples, found = soundfile.read(BytesIO(data), dtype="float32", always_2d=True)
    if len(samples) != size[0] or found != rate:
        raise MediaError(
            f"it has {len(samples):,} samples at {found} Hz, and had {size[0]:,} at {rate:g} Hz when it was prepared; restore the "
            f"file, or prepare again with refresh=True"
        )
    if found != wanted_rate:
        raise MediaError(
            f"it has {found} samples a second, and the model takes {wanted_rate}; resample the file: how that is done changes the features"
        )
    return np.asarray(samples.mean(axis=1), np.float32)
