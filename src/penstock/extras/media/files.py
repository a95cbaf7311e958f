"""Open images, videos and audio clips with the few decoders that training data needs.

Pillow, FFmpeg and libsndfile read dozens of formats.  Some of those start other programs (EPS starts Ghostscript), open network
connections (an SDP text of 130 bytes makes FFmpeg bind a port and wait) or read other files (playlists).  The bytes come from records, so
they are not trusted: only the formats listed here are opened, and a decoder can open nothing but the bytes that it was handed.
"""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NoReturn

import numpy as np

from penstock.errors import MediaError

# Pillow's names; its JPEG reader also reads MPO.  Formats without a signature of their own, such as TGA, are left out.
IMAGE_FORMATS = (
    "AVIF",
    "BMP",
    "DIB",
    "GIF",
    "ICO",
    "JPEG",
    "JPEG2000",
    "PNG",
    "PPM",
    "QOI",
    "TIFF",
    "WEBP",
)
# FFmpeg's demuxer by how files begin: (place, bytes, demuxer).  None of these opens another file or an address.
_VIDEO_SIGNATURES = (
    (4, b"ftyp", "mov"),
    (4, b"moov", "mov"),
    (4, b"mdat", "mov"),
    (4, b"wide", "mov"),
    (4, b"free", "mov"),
    (4, b"skip", "mov"),
    (0, b"\x1aE\xdf\xa3", "matroska"),
    (8, b"AVI ", "avi"),
    (0, b"FLV\x01", "flv"),
    (0, b"OggS", "ogg"),
    (0, b"GIF8", "gif"),
    (0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "asf"),
    (0, b"\x00\x00\x01\xba", "mpeg"),
    (0, b"\x00\x00\x01\xb3", "mpegvideo"),
)
_TS_PACKET = 188  # bytes; each packet of a transport stream begins with the byte 0x47
_SIGNATURE_BYTES = 4 * _TS_PACKET
# How the formats begin that libsndfile may be asked to read.
_AUDIO_SIGNATURES = (
    (8, b"WAVE", "WAV"),
    (0, b"riff\x2e\x91\xcf\x11", "W64"),
    (0, b"fLaC", "FLAC"),
    (0, b"OggS", "Ogg"),
    (0, b"ID3", "MP3"),
    (8, b"AIFF", "AIFF"),
    (8, b"AIFC", "AIFF"),
    (0, b"caff", "CAF"),
    (0, b".snd", "AU"),
    (0, b"NIST_1A", "NIST Sphere"),
)
_VIDEO_NAMES = "MP4, MOV, Matroska, WebM, AVI, FLV, Ogg, GIF, ASF, MPEG"
_AUDIO_NAMES = "WAV, FLAC, Ogg, MP3, AIFF, CAF, AU, W64, NIST Sphere"
_BYTES_LITERAL = re.compile(r"b'[^']*'|b\"[^\"]*\"")


def explain(error: BaseException) -> str:
    """Return what a decoder said, without bytes of the file: an error must not show what a file holds."""
    text = " ".join(str(error).split()) or type(error).__name__
    return _BYTES_LITERAL.sub("…", text)


class BrokenMedia(MediaError):
    """A file of media does not hold what its record says: another file would be read."""


class Blank(bytes):
    """Stands for the bytes of media that cannot be read: black pixels, or silence."""


BLANK = Blank()


class PackageMissing(MediaError):
    """A package that reads media is not installed.  No record is to blame, so none is skipped for it."""


def open_image(file: BinaryIO) -> Any:
    """Open an image lazily with Pillow; UnidentifiedImageError for a format that is not listed."""
    try:
        from PIL import Image
    except ImportError as error:
        raise PackageMissing("reading images needs Pillow; install penstock[vlm]") from error
    return Image.open(file, formats=IMAGE_FORMATS)


@contextmanager
def open_video(file: BinaryIO) -> Iterator[Any]:
    """Open a video with PyAV; every failure inside the block is a MediaError.

    The demuxer is chosen here by the first bytes, so FFmpeg never guesses one.
    """
    try:
        import av
    except ImportError as error:
        raise PackageMissing("reading videos needs PyAV; install penstock[video]") from error
    start = file.read(_SIGNATURE_BYTES)
    file.seek(0)
    demuxer = _video_demuxer(start)
    if demuxer is None:
        raise MediaError(
            f"not a video of a format that Penstock opens ({_VIDEO_NAMES}): {looks_like(start)}; convert or remove it"
        )
    try:
        with av.open(
            file,
            format=demuxer,
            # a container may name other files and addresses: no protocol is allowed, and nothing opens them
            options={"protocol_whitelist": "none"},
            io_open=_refuse_other_files,
            metadata_errors="replace",
        ) as container:
            yield container
    except MediaError:
        raise
    except Exception as error:  # PyAV raises AttributeError and others for damaged containers
        raise MediaError(
            f"not a video that PyAV can read ({explain(error)}): {looks_like(start)}; replace it"
        ) from error


def _video_demuxer(start: bytes) -> str | None:
    for place, signature, demuxer in _VIDEO_SIGNATURES:
        if start[place : place + len(signature)] == signature:
            return demuxer
    packets = start[::_TS_PACKET]
    if len(packets) >= 2 and set(packets) == {0x47}:
        return "mpegts"
    return None


def _refuse_other_files(url: str, flags: int, options: dict[str, str]) -> NoReturn:
    raise MediaError(
        "the container names another file or address; only what is in the file itself is read"
    )


@contextmanager
def open_audio(file: BinaryIO) -> Iterator[Any]:
    """Open an audio clip with soundfile; every failure inside the block is a MediaError."""
    try:
        import soundfile
    except ImportError as error:
        raise PackageMissing("reading audio needs soundfile; install penstock[audio]") from error
    start = file.read(_SIGNATURE_BYTES)
    file.seek(0)
    if not _is_audio(start):
        raise MediaError(
            f"not audio of a format that Penstock opens ({_AUDIO_NAMES}): {looks_like(start)}; convert or remove it"
        )
    try:
        with soundfile.SoundFile(file) as opened:
            yield opened
    except MediaError:
        raise
    except Exception as error:  # also TypeError and AssertionError, for damaged headers
        raise MediaError(
            f"not audio that soundfile can read ({explain(error)}): {looks_like(start)}; replace it"
        ) from error


def _is_audio(start: bytes) -> bool:
    for place, signature, _ in _AUDIO_SIGNATURES:
        if start[place : place + len(signature)] == signature:
            return True
    # a frame of MP3: eleven bits that are set, and a layer that is not the reserved one
    return len(start) > 1 and start[0] == 0xFF and start[1] & 0xE0 == 0xE0 and bool(start[1] & 0x06)


# Sampling rates

_RATES = range(1_000, 1_000_001)  # samples a second that are resampled; others are damaged headers


def check_rate(rate: float, wanted_rate: int) -> None:
    """Refuse an audio clip of a rate that the loader could not resample to the model's rate."""
    if rate == wanted_rate:
        return
    if rate != int(rate) or int(rate) not in _RATES:
        raise MediaError(
            f"the audio clip has {rate:g} samples a second, expected a whole number from {_RATES[0]:,} to {_RATES[-1]:,}; "
            f"resample the file to {wanted_rate:,}"
        )
    try:
        import soxr  # noqa: F401 - the loader needs it
    except ImportError as error:
        raise PackageMissing(
            f"the audio clip has {rate:g} samples a second and the model takes {wanted_rate:,}: resampling needs soxr; "
            f"install penstock[audio]"
        ) from error


def resampled_length(samples: int, rate: float, wanted_rate: int) -> int:
    """Return how many samples a clip has after `resample`.  The order of the operations is librosa's, which rounds floats."""
    return math.ceil(samples * (float(wanted_rate) / rate))


def resample(samples: Any, rate: int, wanted_rate: int) -> Any:
    """Return one channel of float32 at another rate, bit-equal to `librosa.resample` with its defaults.

    transformers and most datasets' loading code resample with librosa, whose default is soxr's high quality.
    """
    if rate == wanted_rate:
        return samples
    import soxr

    resampled = soxr.resample(samples, rate, wanted_rate, quality="HQ")
    # soxr may make a sample more or fewer
    fitted = np.zeros(resampled_length(len(samples), rate, wanted_rate), np.float32)
    shared = min(len(fitted), len(resampled))
    fitted[:shared] = resampled[:shared]
    return fitted


# How files begin, to say what a file is that cannot be read as what the record says.
_MAGIC = (
    (0, b"\xff\xd8\xff", "a JPEG image"),
    (0, b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (0, b"GIF8", "a GIF image"),
    (8, b"WEBP", "a WebP image"),
    (4, b"ftyp", "an MP4 or similar file"),
    (0, b"\x1aE\xdf\xa3", "a Matroska or WebM video"),
    (8, b"WAVE", "WAV audio"),
    (0, b"fLaC", "FLAC audio"),
    (0, b"OggS", "an Ogg file"),
    (0, b"ID3", "MP3 audio"),
    (0, b"%!PS", "PostScript, which is a program and is not run"),
    (0, b"#EXTM3U", "a playlist, which names other files"),
    (0, b"v=0", "a session description (SDP), which names a network address"),
    (0, b"%PDF", "a PDF"),
    (0, b"PK\x03\x04", "a ZIP archive"),
    (0, b"\x1f\x8b", "a gzip file"),
    (0, b"<svg", "an SVG drawing, which has no pixels"),
    (0, b"<", "HTML or XML text, perhaps an error page that was saved as a file"),
    (0, b"{", "JSON text"),
    (0, b"version https://git-lfs", "a Git LFS pointer: run git lfs pull"),
)


def image_format_of(start: bytes) -> str | None:
    """Return the image format whose first bytes these are, of those that Penstock opens."""
    for place, magic, what in _MAGIC:
        if what.endswith(" image") and start[place : place + len(magic)] == magic:
            return what.removeprefix("a ").removesuffix(" image")
    return None


def looks_like(start: bytes) -> str:
    """Say what type of file begins like this.  The bytes themselves are never shown: the file may hold a secret."""
    text = start.lstrip()
    for place, magic, what in _MAGIC:
        if start[place : place + len(magic)] == magic or (place == 0 and text.startswith(magic)):
            return f"it looks like {what}"
    return "its first bytes are those of no format that Penstock knows"
