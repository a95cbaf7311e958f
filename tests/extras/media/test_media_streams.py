"""Videos of Qwen-VL and audio of Qwen2-Audio in batches."""

import json
import math
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
av = pytest.importorskip("av")

import penstock as ps  # noqa: E402
from penstock.errors import MediaError, TemplateError  # noqa: E402
from penstock.extras.media.chat_step import media_reader  # noqa: E402
from penstock.extras.media.files import resample  # noqa: E402
from penstock.extras.trainers.isolation import check_isolation  # noqa: E402
from penstock.extras.trainers.model_inputs import ModelInputs  # noqa: E402
from penstock.types import MediaItem  # noqa: E402
from tests.extras.media import processors, vlm  # noqa: E402

VIDEOS = [
    (10, 48, 64, 5),
    (7, 64, 48, 8),
    (20, 32, 96, 10),
    (5, 80, 80, 24),
]  # frames, height, width, rate


@pytest.fixture(scope="module", params=vlm.FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records with videos, images, both in either order, and neither."""
    folder = tmp_path_factory.mktemp("videos") / request.param
    vlm.processor_folder(folder / "model", request.param)
    rng, lines = random.Random(3), []
    for number, video in enumerate(VIDEOS):
        vlm.write_video(folder / f"{number}.mp4", *video, seed=number)
        vlm.write_image(folder / f"{number}.png", 40 + 9 * number, 70, seed=number)
        for files in (
            [f"{number}.mp4"],
            [f"{number}.png", f"{number}.mp4"],
            [f"{number}.mp4", f"{number}.png"],
            [],
        ):
            lines.append(vlm.conversation(rng, files))
    (folder / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture(scope="module")
def store(folder: Path) -> Any:
    return vlm.prepare(folder)


def decoded(path: Path) -> list[Any]:
    with av.open(str(path)) as container:
        return [frame.to_image() for frame in container.decode(video=0)]


def seconds_per_moment(item: MediaItem, chosen: Any) -> float:
    """As transformers' processor of Qwen2.5-VL says."""
    from transformers.video_utils import VideoMetadata

    metadata = VideoMetadata(
        total_num_frames=item.size[0], fps=item.rate, frames_indices=chosen.tolist()
    )
    return 2 / metadata.sampled_fps


def test_each_frame_is_what_the_image_processor_makes_of_it(folder: Path, store: Any) -> None:
    image_processor, processor = (
        vlm.image_processor(folder.name),
        media_reader(store.template).processor,
    )
    seen = 0
    for batch in ps.Loader(
        store, batch_size=1, max_length=512, packing="none", shuffle=False, output="numpy"
    ):
        [row] = batch.media
        begin = 0
        for _, item in row:
            if item.kind != "video":
                continue
            chosen = processor.frames(item.size, item.rate)
            frames = [decoded(folder / item.place)[number] for number in chosen.tolist()]
            frames += frames[-1:] * (len(frames) % 2)
            times, down, across = batch["video_grid_thw"][0].tolist()
            assert times == len(frames) // 2
            size = (across * image_processor.patch_size, down * image_processor.patch_size)
            for place in range(times):
                found = batch["pixel_values_videos"][begin : begin + down * across].reshape(
                    down * across, 3, 2, -1
                )
                for time, frame in enumerate(frames[2 * place : 2 * place + 2]):
                    own = image_processor(
                        frame.resize(size, image_processor.resample), do_resize=False
                    )["pixel_values"]
                    assert np.array_equal(found[:, :, time], own.reshape(found.shape)[:, :, time])
                begin += down * across
            seen += 1
        assert begin == len(batch.get("pixel_values_videos", ()))
    assert seen == 12


def alone(folder: Path, store: Any, model: Any) -> dict[int, tuple[Any, Any]]:
    """Positions and logits of each sample, as the model itself finds them from the kinds of its tokens."""
    found, token = {}, vlm.trained_tokenizer().token_to_id
    for batch in ps.Loader(store, batch_size=1, max_length=512, packing="none", shuffle=False):
        ids = batch["input_ids"]
        types = (ids == token("<|image_pad|>")).long() + 2 * (ids == token("<|video_pad|>")).long()
        media = {
            name: batch[name] for name in ("image_grid_thw", "video_grid_thw") if name in batch
        }
        pixels = {
            name: batch[name] for name in ("pixel_values", "pixel_values_videos") if name in batch
        }
        options = dict(media)
        videos = [item for row in batch.media for _, item in row if item.kind == "video"]
        if folder.name == "qwen2_5_vl" and videos:
            processor = media_reader(store.template).processor
            each = [
                seconds_per_moment(item, processor.frames(item.size, item.rate)) for item in videos
            ]
            options["second_per_grid_ts"] = torch.tensor(each)
        positions, _ = model.model.get_rope_index(ids, types, **options)
        with torch.no_grad():
            logits = model(
                input_ids=ids,
                position_ids=positions,
                attention_mask=torch.ones_like(ids),
                use_cache=False,
                **media,
                **pixels,
            ).logits
        found[int(batch.rows.spans["sample"][0])] = (positions[:, 0], logits[0])
    return found


def test_packed_videos_have_the_positions_and_logits_that_they_have_alone(
    folder: Path, store: Any
) -> None:
    model = vlm.tiny_model(folder.name).eval()
    expected, inputs, seen = alone(folder, store, model), ModelInputs(model), 0
    for batch in ps.Loader(store, batch_size=2, max_length=420, seed=1):
        with torch.no_grad():
            logits = model(**inputs(batch)).logits.flatten(0, 1)
        positions, numbers = batch["position_ids"].flatten(1), batch["seq_idx"].reshape(-1)
        begins = ((positions[0] == 0) & (numbers >= 0)).nonzero()[:, 0].tolist()
        for begin, span in zip(begins, batch.rows.spans, strict=True):
            own_positions, own_logits = expected[int(span["sample"])]
            end = begin + int(span["stop"])
            assert positions[1:, begin:end].tolist() == own_positions.tolist()
            torch.testing.assert_close(logits[begin:end], own_logits, rtol=0, atol=2e-6)
            seen += 1
    assert seen == 16


def test_the_isolation_check_takes_videos(
    folder: Path, store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    check_isolation(vlm.tiny_model(folder.name), ps.Loader(store, batch_size=2, max_length=420))
    assert not caplog.records


def test_a_video_that_is_cut_short_is_named(tmp_path: Path) -> None:
    vlm.processor_folder(tmp_path / "model", "qwen3_vl")
    path = vlm.write_video(tmp_path / "a.mp4", 20, 48, 64, rate=5, seed=0)
    (tmp_path / "data.jsonl").write_text(
        json.dumps(vlm.conversation(random.Random(0), ["a.mp4"])) + "\n"
    )
    store = vlm.prepare(tmp_path)
    content = bytearray(path.read_bytes())
    begin = content.find(b"mdat") + 4
    content[begin + 1000 : begin + len(content) // 2] = bytes(len(content) // 2 - 1000)
    path.write_bytes(content)
    with pytest.raises(MediaError, match=r"data.jsonl:1: video 0, 'a.mp4': "):
        list(ps.Loader(store, batch_size=1, max_length=512))


def test_positions_of_videos_need_the_models_config(tmp_path: Path) -> None:
    vlm.processor_folder(tmp_path / "model", "qwen2_5_vl")
    (tmp_path / "model" / "config.json").unlink()
    vlm.write_video(tmp_path / "a.mp4", 10, 48, 64, rate=5, seed=0)
    (tmp_path / "data.jsonl").write_text(
        json.dumps(vlm.conversation(random.Random(0), ["a.mp4"])) + "\n"
    )
    store = vlm.prepare(tmp_path)
    with pytest.raises(MediaError, match=r"tokens_per_second, but no config.json in .* has it"):
        list(ps.Loader(store, batch_size=1, max_length=512))


# Audio


def make_audio(folder: Path, rate: int = 16_000) -> Any:
    soundfile = pytest.importorskip("soundfile")
    processor = processors.qwen2_audio()
    processors.save(processor, folder / "model")
    rng, lines = np.random.default_rng(0), []
    for number, channels in enumerate([1, 2, 1]):
        samples = rng.uniform(-0.5, 0.5, (rate // 2 + 977 * number, channels)).astype(np.float32)
        soundfile.write(folder / f"{number}.wav", samples, rate, subtype="FLOAT")
        parts = [
            {"type": "audio", "audio": f"{number}.wav"},
            {"type": "text", "text": "What is it?"},
        ]
        talk = [
            {"role": "user", "content": parts},
            {"role": "assistant", "content": "a dog " * (number + 1)},
        ]
        lines.append({"messages": talk})
    (folder / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return processor


def test_audio_equals_the_processor_bit_by_bit(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    processor = make_audio(tmp_path)
    lines = [
        json.loads(line)["messages"] for line in (tmp_path / "data.jsonl").read_text().splitlines()
    ]
    loader = ps.Loader(
        vlm.prepare(tmp_path), batch_size=3, max_length=256, packing="none", shuffle=False
    )
    [batch] = loader
    clips = [
        soundfile.read(tmp_path / f"{n}.wav", dtype="float32", always_2d=True)[0].mean(axis=1)
        for n in range(3)
    ]
    render = processor.tokenizer.apply_chat_template
    texts = [render(talk, chat_template=processor.chat_template, tokenize=False) for talk in lines]
    processor.tokenizer.pad_token = "<|im_end|>"
    made = processor(
        text=texts, audio=clips, sampling_rate=16_000, padding=True, return_tensors="pt"
    )
    for name in ("input_features", "feature_attention_mask"):
        assert batch[name].dtype == made[name].dtype and torch.equal(batch[name], made[name])
    for row, text, clip in zip(batch["input_ids"], texts, clips, strict=True):
        ids = processor(text=[text], audio=[clip], sampling_rate=16_000)["input_ids"][0]
        assert row[: len(ids)].tolist() == list(ids)


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 48_000])
def test_audio_of_another_rate_is_resampled_and_has_the_tokens_of_the_processor(
    tmp_path: Path, rate: int
) -> None:
    """N4: audio at 22,050 Hz passed prepare and raised in the training loop.

    The expected signal is made here as librosa makes it: soxr's high quality, fitted to ceil(samples × ratio).
    """
    soundfile = pytest.importorskip("soundfile")
    soxr = pytest.importorskip("soxr")
    processor = make_audio(tmp_path, rate=rate)
    store = vlm.prepare(tmp_path)
    [batch] = ps.Loader(store, batch_size=3, max_length=256, packing="none", shuffle=False)
    clips = []
    for number in range(3):
        samples, _ = soundfile.read(tmp_path / f"{number}.wav", dtype="float32", always_2d=True)
        mono = samples.mean(axis=1)
        made = soxr.resample(mono, rate, 16_000, quality="HQ")
        size = math.ceil(len(mono) * (16_000 / rate))
        clips.append(np.pad(made, (0, max(0, size - len(made))))[:size].astype(np.float32))
    processor.tokenizer.pad_token = "<|im_end|>"
    texts = ["<|AUDIO|>"] * 3
    made = processor(
        text=texts, audio=clips, sampling_rate=16_000, padding=True, return_tensors="pt"
    )
    for name in ("input_features", "feature_attention_mask"):
        assert torch.equal(batch[name], made[name])
    token = processor.tokenizer.convert_tokens_to_ids("<|AUDIO|>")
    ids = batch["input_ids"]
    assert [int((row == token).sum()) for row in ids] == [
        int((row == token).sum()) for row in made["input_ids"]
    ]


def test_a_tone_keeps_its_pitch_when_it_is_resampled() -> None:
    rate = 44_100
    tone = np.sin(2 * np.pi * 440 * np.arange(rate) / rate).astype(np.float32)
    expected = np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)
    found = resample(tone, rate, 16_000)
    assert np.abs(found[500:-500] - expected[500:-500]).max() < 1e-3


@pytest.mark.parametrize("rate", [999, 1_000_001])
def test_audio_of_a_rate_that_no_clip_has_is_refused_or_skipped_at_prepare(
    tmp_path: Path, rate: int
) -> None:
    make_audio(tmp_path, rate=rate)
    with pytest.raises(TemplateError, match="expected a whole number from 1,000 to 1,000,000"):
        vlm.prepare(tmp_path)
    store = vlm.prepare(tmp_path, on_media="skip")
    assert store.counts.dropped["bad_media"].count == 3


def test_a_missing_resampler_stops_prepare_and_skips_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_audio(tmp_path, rate=8_000)
    monkeypatch.setitem(sys.modules, "soxr", None)
    with pytest.raises(TemplateError, match=r"resampling needs soxr; install penstock\[audio\]"):
        vlm.prepare(tmp_path, on_media="skip")
