"""Videos of Qwen-VL and audio of Qwen2-Audio: the tokens of transformers, from sizes in headers."""

import io
import json
import random
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from PIL import Image

from penstock.errors import MediaError, TemplateError
from penstock.extras.media.chat_step import MediaOptions, media_reader
from penstock.extras.media.headers import read_header
from penstock.extras.media.processors import Processor, ProcessorFiles, read_processor
from penstock.templates import open_template, open_tokenizer
from penstock.types import unpack_media
from tests.extras.media import processors

VIDEO = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
ANSWER = {"role": "assistant", "content": "Two dogs."}
SETTINGS: list[dict[str, Any]] = [
    {},
    {"do_sample_frames": True, "fps": 2},
    {"do_sample_frames": True, "fps": 1.5, "min_frames": 6, "max_frames": 20},
    {"do_sample_frames": False},
    {
        "size": {"shortest_edge": 4 * 28 * 28, "longest_edge": 28 * 28 * 64},
        "do_sample_frames": True,
        "fps": 4,
    },
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ProcessorFiles]:
    made = {}
    for family in VIDEO:
        found = read_processor(
            processors.save(processors.VISION[family](), tmp_path_factory.mktemp(family))
        )
        assert found is not None
        made[family] = found
    return made


def cases(family: str, count: int) -> list[list[Any]]:
    rng = random.Random(5)
    made = []
    for _ in range(count):
        frames = rng.choice((rng.randint(1, 12), rng.randint(1, 300), rng.randint(1, 4000)))
        height, width = (rng.choice((rng.randint(4, 60), rng.randint(60, 1100))) for _ in "hw")
        rate = rng.choice((1.0, 10.0, 23.976, 24.0, 25.0, 29.97, 30.0, 60.0, 7.5))
        made.append([family, rng.choice(SETTINGS), frames, height, width, rate])
    return made


@pytest.fixture(scope="module")
def answers() -> list[tuple[list[Any], dict[str, Any]]]:
    """Cases of all families, and what transformers says about each."""
    given = [case for family in VIDEO for case in cases(family, 400)]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.extras.media.video_truth"],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    return list(zip(given, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("family", VIDEO)
def test_videos_are_sampled_and_counted_as_transformers_does(
    family: str, files: dict[str, ProcessorFiles], answers: list[tuple[list[Any], dict[str, Any]]]
) -> None:
    given = [each for each in answers if each[0][0] == family]
    refused = 0
    for (_, settings, frames, height, width, rate), answer in given:
        own, size = (
            Processor(replace(files[family], video={**settings, "own": 1}), {}),
            (frames, height, width),
        )
        if "refused" in answer:
            refused += 1
            with pytest.raises(MediaError):
                own.expand("video", size, rate)
            continue
        assert own.frames(size, rate).tolist() == answer["frames"], (settings, size, rate)
        pieces = own.expand("video", size, rate)
        pads = sum(count for text, count in pieces if text == "<|video_pad|>")
        assert pads == answer["tokens"], (settings, size, rate)
        if "text" in answer:
            assert "".join(text * count for text, count in pieces) == answer["text"], (
                settings,
                size,
                rate,
            )
    assert refused < len(given) // 3


OPTIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"fps": 1}, {"do_sample_frames": True, "fps": 1}),
    ({"fps": 0.7, "max_frames": 6}, {"do_sample_frames": True, "fps": 0.7, "max_frames": 6}),
    (
        {"min_pixels": 3136, "max_pixels": 50176},
        {"size": {"shortest_edge": 3136, "longest_edge": 50176}},
    ),
]


@pytest.mark.parametrize("family", VIDEO)
@pytest.mark.parametrize(("options", "written"), OPTIONS)
def test_video_options_are_what_the_processors_files_would_say(
    family: str,
    options: dict[str, Any],
    written: dict[str, Any],
    files: dict[str, ProcessorFiles],
) -> None:
    usual = {"do_sample_frames": True, "fps": 3}
    given = replace(files[family], video=usual)
    by_option = Processor(given, {}, video_options=options)
    by_file = Processor(replace(given, video={**usual, **written}), {})
    for frames, height, width, rate in ((300, 200, 300, 25.0), (40, 333, 64, 10.0)):
        size = (frames, height, width)
        assert by_option.frames(size, rate).tolist() == by_file.frames(size, rate).tolist()
        assert by_option.expand("video", size, rate) == by_file.expand("video", size, rate)
    assert by_option.identity() != Processor(given, {}).identity()


@pytest.mark.parametrize("family", VIDEO)
def test_a_number_of_frames_is_at_most_those_of_the_video(
    family: str, files: dict[str, ProcessorFiles]
) -> None:
    given = replace(files[family], video={"fps": 3})
    own = Processor(given, {}, video_options={"num_frames": 8})
    assert len(own.frames((100, 200, 300), 25.0)) == 8
    assert len(own.frames((6, 200, 300), 25.0)) == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fsp": 1}, "video_options has 'fsp'; did you mean 'fps'"),
        ({"fps": 0}, "fps is 0, expected a number greater than 0"),
        ({"num_frames": 2.5}, "num_frames is 2.5, expected a whole number"),
        ({"fps": 1, "num_frames": 8}, "which both say how many frames"),
    ],
)
def test_wrong_video_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        MediaOptions(video_options=options)


def film(
    path: Path | io.BytesIO,
    *,
    frames: int,
    height: int,
    width: int,
    rate: int = 10,
    codec: str = "mpeg4",
    form: str = "mp4",
) -> None:
    with av.open(path, "w", format=form) as container:
        stream = container.add_stream(codec, rate=Fraction(rate))
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        for number in range(frames):
            image = np.full((height, width, 3), number * 5 % 256, np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)


@pytest.mark.parametrize(
    ("codec", "form"), [("mpeg4", "mp4"), ("mpeg4", "matroska"), ("mpeg4", "avi")]
)
def test_the_header_of_a_video_says_frames_size_and_rate(codec: str, form: str) -> None:
    file = io.BytesIO()
    film(file, frames=23, height=48, width=64, codec=codec, form=form)
    file.seek(0)
    found = read_header("video", file)
    assert found.size == (23, 48, 64)
    assert found.rate == pytest.approx(10)


def test_a_file_that_is_no_video_is_refused() -> None:
    for data, why in (
        (b"no video at all", "not a video of a format that Penstock opens"),
        (b"", "the file is empty, expected a video"),
    ):
        with pytest.raises(MediaError, match=why):
            read_header("video", io.BytesIO(data))
    sound = io.BytesIO()
    soundfile.write(sound, np.zeros(800), 8000, format="WAV")
    sound.seek(0)
    with pytest.raises(
        MediaError, match=r"not a video of a format that Penstock opens .*: it looks like WAV audio"
    ):
        read_header("video", sound)


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = processors.save(processors.qwen3_vl(), tmp_path_factory.mktemp("qwen3"))
    settings = {
        "do_sample_frames": True,
        "fps": 2,
        "size": {"shortest_edge": 4096, "longest_edge": 1 << 18},
    }
    (folder / "video_preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def test_a_record_with_a_video_and_an_image_has_the_tokens_of_both(
    qwen3: Path, tmp_path: Path
) -> None:
    film(tmp_path / "v.mp4", frames=30, height=64, width=96)
    Image.new("RGB", (90, 60)).save(tmp_path / "a.png")
    template = open_template(
        "messages", open_tokenizer(qwen3, fast=False), {"media_root": str(tmp_path)}
    )
    content = [
        {"type": "video", "video": "v.mp4"},
        {"type": "text", "text": " or "},
        {"type": "image", "image": "a.png"},
    ]
    made = template.encode([{"messages": [{"role": "user", "content": content}, ANSWER]}])
    video, image = unpack_media(made.columns["media"].values.tobytes())
    assert (video.kind, video.size, video.rate, image.kind) == (
        "video",
        (30, 64, 96),
        10.0,
        "image",
    )
    assert media_reader(template).processor.frames(video.size, video.rate).tolist() == [
        0,
        6,
        12,
        17,
        23,
        29,
    ]
    assert "<0.3 seconds>" in template.decode(made.input_ids[slice(*video.span)])
    assert not made.loss_mask[: image.span[1] + 1].any()
    assert template.decode(made.input_ids[made.loss_mask]).startswith("Two dogs.")


def test_a_folder_without_video_settings_is_refused_for_videos(qwen3: Path, tmp_path: Path) -> None:
    folder = processors.save(processors.qwen3_vl(), tmp_path / "p")
    film(tmp_path / "v.mp4", frames=8, height=64, width=96)
    template = open_template(
        "messages", open_tokenizer(folder, fast=False), {"media_root": str(tmp_path)}
    )
    record = {"messages": [{"role": "user", "content": "<video>?"}, ANSWER], "videos": ["v.mp4"]}
    with pytest.raises(
        MediaError, match=r"v.mp4: the processor's folder has no video_preprocessor_config.json"
    ):
        template.encode([record])


@pytest.fixture(scope="module")
def audio(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    made = processors.qwen2_audio()
    return made, processors.save(made, tmp_path_factory.mktemp("audio"))


def test_audio_has_the_tokens_of_the_models_own_processor(
    audio: tuple[Any, Path], tmp_path: Path
) -> None:
    made, folder = audio
    rng = random.Random(6)
    lengths = [480, 481, 16_000, 479_999, 480_000, *(rng.randint(500, 60_000) for _ in range(15))]
    template = open_template(
        "messages", open_tokenizer(folder, fast=False), {"media_root": str(tmp_path)}
    )
    for length in lengths:
        sound = np.zeros(length, np.float32)
        soundfile.write(tmp_path / "a.wav", sound, 16_000)
        messages = [
            {"role": "user", "content": [{"type": "audio"}, {"type": "text", "text": "What?"}]},
            ANSWER,
        ]
        text = made.tokenizer.apply_chat_template(
            messages, chat_template=made.chat_template, tokenize=False
        )
        expected = made(text=[text], audio=[sound], sampling_rate=16_000)["input_ids"][0]
        found = template.encode([{"messages": messages, "audio": "a.wav"}])
        assert found.input_ids.tolist() == [int(token) for token in expected], length
        (item,) = unpack_media(found.columns["media"].values.tobytes())
        assert (item.kind, item.size, item.rate) == ("audio", (length,), 16_000.0)
        assert not found.loss_mask[: item.span[1] + 1].any()


@pytest.mark.parametrize("form", ["WAV", "FLAC", "OGG", "MP3"])
def test_the_header_of_audio_says_samples_and_rate(form: str) -> None:
    file = io.BytesIO()
    soundfile.write(file, np.zeros(8_000), 8_000, format=form)
    file.seek(0)
    found = read_header("audio", file)
    assert found.rate == 8_000
    assert found.size[0] == pytest.approx(8_000, abs=1_200)  # MP3 counts in frames


def test_audio_of_another_rate_counts_as_resampled_and_too_long_audio_is_refused(
    audio: tuple[Any, Path], tmp_path: Path
) -> None:
    template = open_template(
        "messages", open_tokenizer(audio[1], fast=False), {"media_root": str(tmp_path)}
    )
    record = {"messages": [{"role": "user", "content": "<audio>?"}, ANSWER], "audios": ["a.wav"]}
    soundfile.write(tmp_path / "a.wav", np.zeros(44_100), 44_100)
    one = template.encode([record]).input_ids
    soundfile.write(tmp_path / "a.wav", np.zeros(16_000), 16_000)
    assert np.array_equal(one, template.encode([record]).input_ids)
    soundfile.write(tmp_path / "a.wav", np.zeros(31 * 8_000), 8_000)
    with pytest.raises(
        MediaError,
        match=r"a.wav: the audio clip is 31.0 s long, but the processor cuts clips at 30 s",
    ):
        template.encode([record])
    soundfile.write(tmp_path / "a.wav", np.zeros(10), 16_000)
    with pytest.raises(MediaError, match="too few for one token"):
        template.encode([record])
    (tmp_path / "a.wav").write_bytes(b"no audio")
    with pytest.raises(MediaError, match=r"a.wav: not audio of a format that Penstock opens"):
        template.encode([record])
