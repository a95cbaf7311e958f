"""Every way to write media in a record gives the same sample; what cannot be meant is refused by name."""

import base64
import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from penstock.errors import MediaError, SourceChanged, SourceError, TemplateError
from penstock.extras.media.chat_step import media_reader
from penstock.templates import open_template, open_tokenizer
from penstock.types import MEDIA, MediaItem, Record, columns_of, unpack_media
from tests.extras.media import processors
from tests.extras.media.processors import template as chat_template

ANSWER = {"role": "assistant", "content": "Two dogs."}
TEXT = "See <image> and <image> what?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return processors.save(processors.qwen2_5_vl(), tmp_path_factory.mktemp("processor"))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    (root / "deep").mkdir()
    for name, size in (("a.png", (60, 90)), ("deep/b.jpg", (100, 40))):
        Image.fromarray(np.full((*size, 3), 99, np.uint8)).save(root / name)
    (root / "broken.png").write_bytes((root / "a.png").read_bytes()[:60])
    (root / "empty.png").write_bytes(b"")
    (root / "text.png").write_text("no image")
    return root


def opened(folder: Path, images: Path, shape: str = "messages", **options: Any) -> Any:
    return open_template(
        shape, open_tokenizer(folder, fast=False), {"media_root": str(images), **options}
    )


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def tagged(**columns: Any) -> Record:
    return {"messages": [user(TEXT), ANSWER], **columns}


def parts(*media: Any) -> Record:
    """The same text in parts."""
    one, two = media
    texts = [{"type": "text", "text": text} for text in ("See ", " and ", " what?")]
    return {"messages": [user([texts[0], one, texts[1], two, texts[2]]), ANSWER]}


def data_url(path: Path, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def ways(images: Path) -> dict[str, Record]:
    """One record, as different libraries write it."""
    a, b = images / "a.png", images / "deep/b.jpg"
    names = ("a.png", "deep/b.jpg")
    raw = [{"bytes": path.read_bytes(), "path": None} for path in (a, b)]
    encoded = [base64.b64encode(path.read_bytes()).decode() for path in (a, b)]
    bare = {"type": "image"}
    return {
        "tags and images": tagged(images=list(names)),
        "tags and a column of one name": tagged(image=list(names)),
        "absolute paths": tagged(images=[str(a), str(b)]),
        "file URLs": tagged(images=[f"file://{a}", f"file://{b}"]),
        "bytes and path of datasets": tagged(images=raw),
        "paths of datasets": tagged(images=[{"bytes": None, "path": name} for name in names]),
        "bytes themselves": tagged(images=[path.read_bytes() for path in (a, b)]),
        "data URLs": tagged(images=[data_url(a), data_url(b, "image/jpeg")]),
        "parts with a path": parts(*({"type": "image", "image": name} for name in names)),
        "parts with a url": parts(*({"type": "image", "url": name} for name in names)),
        "parts with path": parts(*({"type": "image", "path": name} for name in names)),
        "image_url of OpenAI": parts(
            *({"type": "image_url", "image_url": {"url": name}} for name in names)
        ),
        "image_url as text": parts(*({"type": "image_url", "image_url": name} for name in names)),
        "data URLs of OpenAI": parts(
            *({"type": "image_url", "image_url": {"url": data_url(path)}} for path in (a, b))
        ),
        "source of Anthropic": parts(
            *(
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": x},
                }
                for x in encoded
            )
        ),
        "base64 parts": parts(*({"type": "image", "base64": text} for text in encoded)),
        "bytes in parts": parts(*({"type": "image", "image": each} for each in raw)),
        "bare parts and a column": {**parts(bare, bare), "images": list(names)},
        "a part with a path, one from the column": {
            **parts({"type": "image", "image": names[0]}, bare),
            "images": [names[1]],
        },
        "tags in a part": {
            "messages": [user([{"type": "text", "text": TEXT}]), ANSWER],
            "images": list(names),
        },
        "nulls of a table": {
            **parts({**bare, "text": None}, {**bare, "text": None}),
            "images": list(names),
            "videos": None,
        },
    }


def samples(made: Any) -> tuple[list[int], list[bool], list[tuple[Any, ...]]]:
    items = unpack_media(made.columns["media"].values.tobytes())
    return (
        made.input_ids.tolist(),
        made.loss_mask.tolist(),
        [(x.kind, x.number, x.size, x.span) for x in items],
    )


def test_every_way_to_write_images_gives_the_same_sample(folder: Path, images: Path) -> None:
    template = opened(folder, images)
    assert columns_of(template) == (MEDIA,)
    expected = samples(template.encode([tagged(images=["a.png", "deep/b.jpg"])]))
    for name, record in ways(images).items():
        made = template.encode([record])
        assert samples(made) == expected, name
        for item in unpack_media(made.columns["media"].values.tobytes()):
            source = (images / "a.png", images / "deep/b.jpg")[item.number]
            assert (
                media_reader(template).bytes_of(item, lambda record=record: record)
                == source.read_bytes()
            ), name


def test_other_shapes_of_records_take_images(folder: Path, images: Path) -> None:
    expected = samples(opened(folder, images).encode([tagged(images=["a.png", "deep/b.jpg"])]))[:1]
    listed = ["a.png", "deep/b.jpg"]
    turns = [{"from": "human", "value": TEXT}, {"from": "gpt", "value": "Two dogs."}]
    llava = {"id": "1", "image": listed, "conversations": turns}
    alpaca = {"instruction": TEXT, "input": "", "output": "Two dogs.", "images": listed}
    sides = {"prompt": [user(TEXT)], "completion": [ANSWER], "images": listed}
    for shape, record, options in (
        ("sharegpt", llava, {}),
        ("alpaca", alpaca, {}),
        ("prompt_completion", sides, {"chat": True}),
    ):
        assert samples(opened(folder, images, shape, **options).encode([record]))[:1] == expected, (
            shape
        )


def test_values_of_llama_factory_keep_their_images_apart_from_texts(
    folder: Path, images: Path
) -> None:
    content = [
        {"type": "text", "value": "See "},
        {"type": "image", "value": "a.png"},
        {"type": "text", "value": " and "},
        {"type": "image", "value": "deep/b.jpg"},
        {"type": "text", "value": " what?"},
    ]
    template = opened(folder, images)
    made = template.encode([{"messages": [user(content), ANSWER]}])
    assert samples(made) == samples(template.encode([tagged(images=["a.png", "deep/b.jpg"])]))


def test_a_range_of_a_file_is_an_image(folder: Path, images: Path, tmp_path: Path) -> None:
    """As tars are read: the path of the archive, and where the member is."""
    data = (images / "a.png").read_bytes()
    (tmp_path / "archive.tar").write_bytes(bytes(512) + data + bytes(100))
    place = {"bytes": None, "path": "archive.tar", "start": 512, "num_bytes": len(data)}
    template = opened(folder, tmp_path)
    (item,) = unpack_media(
        template.encode([{"messages": [user("<image>?"), ANSWER], "images": [place]}])
        .columns["media"]
        .values.tobytes()
    )
    assert (item.place, item.start, item.num_bytes, item.size) == (
        "archive.tar",
        512,
        len(data),
        (60, 90),
    )
    assert media_reader(template).bytes_of(item, dict) == data
    beyond = {**place, "num_bytes": len(data) + 1_000}
    with pytest.raises(MediaError, match=r"the record names bytes 512 to .*, and the file has"):
        template.encode([{"messages": [user("<image>?"), ANSWER], "images": [beyond]}])


def test_beside_parts_a_tag_is_a_word(folder: Path, images: Path) -> None:
    template = opened(folder, images)
    content = [{"type": "image"}, {"type": "text", "text": "What does the tag <image> mean?"}]
    made = template.encode([{"messages": [user(content), ANSWER], "images": ["a.png"]}])
    assert len(unpack_media(made.columns["media"].values.tobytes())) == 1
    assert "the tag <image> mean?" in template.decode(made.input_ids)


def test_a_placeholder_cannot_be_put_together_from_parts(folder: Path, images: Path) -> None:
    """A template that prints only the last part, and a text that replaces the image: the counts alone would agree."""
    only_texts = chat_template(image="", video="")
    content = [
        {"type": "image", "image": "a.png"},
        {"type": "text", "text": "<|image"},
        {"type": "text", "text": "_pad|>"},
    ]
    with pytest.raises(MediaError, match=r"the text of the record holds '<\|image_pad\|>'"):
        opened(folder, images, chat_template=only_texts).encode(
            [{"messages": [user(content), ANSWER]}]
        )


def test_a_template_opens_in_another_process(folder: Path, images: Path) -> None:
    template = opened(folder, images)
    record = tagged(images=["a.png", "deep/b.jpg"])
    again = pickle.loads(pickle.dumps(template))
    assert samples(again.encode([record])) == samples(template.encode([record]))


def test_both_engines_of_the_tokenizer_give_the_same(folder: Path, images: Path) -> None:
    options = {"media_root": str(images)}
    record = tagged(images=["a.png", "deep/b.jpg"])
    made = [
        open_template("messages", open_tokenizer(folder, fast=fast), options).encode([record])
        for fast in (True, False)
    ]
    assert samples(made[0]) == samples(made[1])


def test_a_record_without_media_is_encoded_as_before(folder: Path, images: Path) -> None:
    record = {"messages": [user("An HTML tag: <image>, and <video>."), ANSWER]}
    made = opened(folder, images).encode([record, tagged(images=["a.png", "a.png"]), record])
    assert made.columns["media"].offsets is not None
    assert np.diff(made.columns["media"].offsets).tolist()[::2] == [0, 0]
    shown = opened(folder, images).decode(made.input_ids[: made.offsets[1]])
    assert "<image>, and <video>." in shown


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (
            tagged(images=["a.png"]),
            "a tag or part of kind image has no file or bytes of its own, and none is left in column",
        ),
        (
            tagged(images=["a.png"] * 3),
            "column 'images' lists 3 of kind image, but the messages have 2 tags or parts",
        ),
        (
            {"messages": [user("What?"), ANSWER], "images": ["a.png"]},
            "column 'images' lists 1 of kind image, but the messages have",
        ),
        (tagged(images=[]), "a tag or part of kind image has no file or bytes of its own"),
        (tagged(images=None), "a tag or part of kind image has no file or bytes of its own"),
        (
            {"messages": [user("What?"), ANSWER], "image": "a.png"},
            "write <image> in the text where each belongs",
        ),
        (tagged(images=["a.png", "missing.png"]), "missing.png: nothing found, expected a file"),
        (tagged(images=["a.png", "broken.png"]), "broken.png: the image is broken or cut off"),
        (tagged(images=["a.png", "empty.png"]), "empty.png: the file is empty"),
        (
            tagged(images=["a.png", "text.png"]),
            "text.png: not an image of a format that Penstock opens",
        ),
        (tagged(images=["a.png", "deep"]), "deep"),
        (
            tagged(images=["a.png", "https://x.org/b.png"]),
            "https://x.org/b.png is outside of the places that media may be read from",
        ),
        (
            tagged(images=["a.png", "s3://x/b.png"]),
            "if the record may name it, set media_folders to 's3://x'",
        ),
        (
            tagged(images=["a.png", 5]),
            "column 'images', place 1: the image is int '5', expected a path",
        ),
        (tagged(images=["a.png", {"height": 5}]), r"a dict with \['height'\], expected a path"),
        (
            tagged(images=["a.png", {"path": "a.png", "start": "1"}]),
            "start is '1' and num_bytes None, expected two whole",
        ),
        (
            tagged(images=["a.png", "a.png"], image="deep/b.jpg"),
            "columns 'images' and 'image' hold different media",
        ),
        (tagged(images=["a.png", ""]), "the path '' is empty"),
        (tagged(images=["a.png", "data:image/png,abc"]), "a data URL that begins 'data:image/png'"),
        (tagged(images=["a.png", "data:audio/wav;base64,AAAA"]), "expected data:image/…"),
        (tagged(images=["a.png", "data:image/png;base64,****"]), "not base64"),
        (tagged(images=["a.png", {"bytes": b"no image"}]), "image in the record: not an image"),
        (
            parts(
                {"type": "image", "image": "a.png", "max_pixels": 100},
                {"type": "image", "image": "a.png"},
            ),
            "has 'max_pixels'",
        ),
        (
            {"messages": [user("<audio>"), ANSWER], "audios": ["a.wav"]},
            "takes image, video, not audio",
        ),
        (
            {"messages": [user("Token <|image_pad|>"), ANSWER]},
            "the text of the record holds '<|image_pad|>', which stands for image",
        ),
        (
            {"messages": [user("<image> <|image_pad|>"), ANSWER], "images": ["a.png"]},
            "the text of the record holds '<|image_pad|>'",
        ),
    ],
)
def test_what_cannot_be_meant_or_read_is_refused_by_name(
    folder: Path, images: Path, record: Record, why: str
) -> None:
    template = opened(folder, images)
    good = tagged(images=["a.png", "a.png"])
    with pytest.raises(MediaError, match=why.replace("|", r"\|")) as caught:
        template.encode([good, record])
    assert caught.value.record == 1
    assert "set on_media to 'skip'" in str(caught.value)
    made = opened(folder, images, on_media="skip").encode([good, record, good])
    assert made.dropped == {1: "bad_media"}
    assert np.array_equal(np.diff(made.offsets) > 0, [True, False, True])


def test_a_placeholder_in_a_text_can_be_text(folder: Path, images: Path) -> None:
    template = opened(folder, images, special_in_text="text")
    record = {
        "messages": [user("Token <|image_pad|>: <image>, é <|image_pad|>"), ANSWER],
        "images": ["a.png"],
    }
    made = template.encode([record])
    pad = template.tokenizer.added_tokens["<|image_pad|>"]
    (item,) = unpack_media(made.columns["media"].values.tobytes())
    assert np.flatnonzero(made.input_ids == pad).tolist() == list(range(*item.span))
    assert template.decode(made.input_ids).count("<|image_pad|>") == 2 + item.span[1] - item.span[0]


def test_a_template_that_leaves_parts_out_is_refused(folder: Path, images: Path) -> None:
    text = chat_template(image="", video="")
    record = tagged(images=["a.png", "a.png"])
    with pytest.raises(
        MediaError,
        match=r"the record has 2 of kind image, and the chat template prints '<\|image_pad\|>' 0 times",
    ):
        opened(folder, images, chat_template=text).encode([record])
    with pytest.raises(TemplateError, match=r"does not print user.content\[image\]"):
        opened(folder, images, chat_template=text, on_unrendered="stop").encode([record])
    assert opened(folder, images, chat_template=text, on_unrendered="skip").encode(
        [record]
    ).dropped == {0: "unrendered"}


def test_a_template_of_a_text_model_that_fails_on_parts_is_named(
    folder: Path, images: Path
) -> None:
    text = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.strip() }}<|im_end|>\n{% endfor %}"
    template = opened(folder, images, chat_template=text)
    with pytest.raises(
        TemplateError,
        match="has media, which chat templates of text models do not take: choose the chat_template",
    ):
        template.encode([tagged(images=["a.png", "a.png"])])
    with pytest.raises(TemplateError) as caught:
        template.encode([{"messages": [{"role": "user", "content": 5}, ANSWER]}])
    assert "media" not in str(caught.value)


def test_without_a_processor_media_are_refused_with_what_to_pass(
    folder: Path, images: Path, tmp_path: Path
) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    template = open_template("messages", open_tokenizer(tmp_path, fast=False), {})
    assert media_reader(template) is None
    assert columns_of(template) == ()
    for record in (
        tagged(images=["a.png", "a.png"]),
        parts({"type": "image", "image": "a"}, {"type": "image", "image": "b"}),
    ):
        with pytest.raises(
            MediaError, match="no processor was found; set processor= to the folder"
        ):
            template.encode([record])
    elsewhere = open_template(
        "messages",
        open_tokenizer(tmp_path, fast=False),
        {"processor": str(folder), "media_root": str(images)},
    )
    expected = opened(folder, images).encode([tagged(images=["a.png", "a.png"])])
    assert samples(elsewhere.encode([tagged(images=["a.png", "a.png"])])) == samples(expected)


def test_a_processor_that_cannot_be_used_is_named(
    folder: Path, images: Path, tmp_path: Path
) -> None:
    tokenizer = open_tokenizer(folder, fast=False)
    with pytest.raises(
        TemplateError, match=r"no processor found, expected a folder with preprocessor_config.json"
    ):
        open_template("messages", tokenizer, {"processor": str(tmp_path)})
    (tmp_path / "preprocessor_config.json").write_text('{"processor_class": "FuyuProcessor"}')
    with pytest.raises(
        TemplateError, match="the processor is 'FuyuProcessor', which Penstock cannot count"
    ):
        open_template("messages", tokenizer, {"processor": str(tmp_path)})
    settings = json.loads((folder / "processor_config.json").read_text())
    settings["image_processor"]["do_resize"] = False
    (tmp_path / "processor_config.json").write_text(json.dumps(settings))
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(TemplateError, match="do_resize is false"):
        open_template("messages", tokenizer, {"processor": str(tmp_path)})
    (tmp_path / "processor_config.json").write_text("{")
    with pytest.raises(TemplateError, match=r"processor_config.json: not JSON"):
        open_template("messages", tokenizer, {"processor": str(tmp_path)})


def test_texts_need_no_processor_that_can_be_used(folder: Path, tmp_path: Path) -> None:
    """A processor of another family next to the tokenizer is no obstacle to texts."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "preprocessor_config.json").write_text('{"processor_class": "FuyuProcessor"}')
    template = open_template("messages", open_tokenizer(tmp_path, fast=False), {})
    assert len(template.encode([{"messages": [user("What?"), ANSWER]}]).input_ids)
    with pytest.raises(MediaError, match="'FuyuProcessor', which Penstock cannot count"):
        template.encode([tagged(images=["a.png", "a.png"])])


def test_bytes_that_changed_are_refused(folder: Path, images: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes((images / "a.png").read_bytes())
    template = opened(folder, tmp_path)
    record = {"messages": [user("<image>?"), ANSWER], "images": ["a.png"]}
    (item,) = unpack_media(template.encode([record]).columns["media"].values.tobytes())
    (tmp_path / "a.png").write_bytes((images / "deep/b.jpg").read_bytes())
    with pytest.raises(
        SourceChanged, match=r"a.png: changed since it was prepared: it has .* bytes, but had"
    ):
        media_reader(template).bytes_of(item, dict)
    (tmp_path / "a.png").unlink()
    with pytest.raises(SourceError, match="nothing found, expected a file"):
        media_reader(template).bytes_of(item, dict)
    inside = MediaItem(kind="image", number=0, place=None, num_bytes=5, size=(1, 1), span=(0, 1))
    with pytest.raises(
        SourceChanged,
        match="image 0 of the record: changed since it was prepared: it has 8 bytes, but had 5",
    ):
        media_reader(template).bytes_of(inside, lambda: {**record, "images": [b"8 bytes!"]})
    with pytest.raises(SourceChanged, match="it has no bytes"):
        media_reader(template).bytes_of(inside, lambda: record)


def test_with_fan_out_a_sample_has_the_media_up_to_its_turn(folder: Path, images: Path) -> None:
    template = opened(folder, images)
    turns = [user("<image> one?"), ANSWER, user("<image> two?"), ANSWER]
    record = {
        "messages": turns,
        "images": ["a.png", {"bytes": (images / "deep/b.jpg").read_bytes()}],
    }
    made = template.encode([{**record, template.turn_key: turn} for turn in (0, 1)])
    offsets = made.columns["media"].offsets
    assert offsets is not None
    one, two = (
        unpack_media(made.columns["media"].values[a:b].tobytes())
        for a, b in itertools.pairwise(offsets)
    )
    assert [len(one), len(two)] == [1, 2]
    assert one[0] == two[0]
    assert (
        media_reader(template).bytes_of(two[1], lambda: record)
        == (images / "deep/b.jpg").read_bytes()
    )


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        (
            "qwen2_vl",
            {"image_processor": {"size": {"height": 5}}},
            "expected shortest_edge and longest_edge",
        ),
        ("llava", {"patch_size": None}, "no patch_size, which the number of tokens depends on"),
        (
            "llava",
            {"image_processor": {"do_center_crop": False}},
            "without a crop, so images may have any size",
        ),
        (
            "idefics3",
            {"image_processor": {"size": {"longest_edge": 200}}},
            "expected a multiple of max_image_size",
        ),
        (
            "qwen2_audio",
            {"feature_extractor": {"hop_length": 80}},
            "hop_length and sampling_rate are 80 and 16000",
        ),
    ],
)
def test_settings_that_cannot_be_counted_are_named(
    tmp_path: Path, name: str, change: dict[str, Any], why: str
) -> None:
    made = processors.save(getattr(processors, name)(), tmp_path)
    settings = json.loads((made / "processor_config.json").read_text())
    for key, value in change.items():
        settings[key] = {**settings[key], **value} if isinstance(value, dict) else value
    (made / "processor_config.json").write_text(json.dumps(settings))
    with pytest.raises(
        TemplateError, match=f"the settings of the processor are not supported: .*{why}"
    ):
        open_template("messages", open_tokenizer(made, fast=False), {"processor": str(made)})
