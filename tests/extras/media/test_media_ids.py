"""Tokens of records with images: the ids of the model's own processor, and exact masks, for every family that can be built."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from PIL import Image

from penstock.cache import Cache
from penstock.errors import MediaError
from penstock.extras.media.chat_step import media_reader
from penstock.extras.media.processors import Processor, read_processor
from penstock.templates import open_template, open_tokenizer
from penstock.types import unpack_media
from tests.extras.media import processors

ASKED, ANSWER = "See <image> and\n<image> Grüße, what?", "It shows é\n two dogs."
NESTED = ("idefics3", "smolvlm", "gemma3")  # their processors take a list of images for each text


class Made:
    """A processor of one family, and the template that Penstock opens from its folder."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, processors.save(processors.VISION[name](), folder / name)
        self.processor = processors.VISION[name]()
        self.cache = Cache(folder / "cache")

    def template(self, root: Path, **options: Any) -> Any:
        given = {"media_root": str(root), **options}
        return open_template(
            "messages", open_tokenizer(self.folder, fast=False, cache=self.cache), given
        )

    def ids(self, messages: list[dict[str, Any]], images: list[Any]) -> list[int]:
        """What the processor makes of a conversation in parts."""
        text = self.processor.tokenizer.apply_chat_template(
            messages, chat_template=self.processor.chat_template, tokenize=False
        )
        found = self.processor(text=[text], images=[images] if self.name in NESTED else images)[
            "input_ids"
        ][0]
        return [int(token) for token in found]


@pytest.fixture(scope="module", params=list(processors.VISION))
def family(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Made]:
    yield Made(request.param, tmp_path_factory.mktemp("family"))


def draw(path: Path, height: int, width: int) -> Image.Image:
    made = Image.fromarray(np.full((height, width, 3), (height * 7 + width) % 256, np.uint8))
    made.save(path)
    return made


def as_parts(text: str) -> list[dict[str, Any]]:
    """The text with image parts for its tags, as transformers takes it."""
    parts: list[dict[str, Any]] = []
    for place, piece in enumerate(text.split("<image>")):
        parts += [{"type": "image"}] if place else []
        parts += [{"type": "text", "text": piece}] if piece else []
    return parts


def talk(*turns: str) -> list[dict[str, Any]]:
    roles = ("user", "assistant")
    return [{"role": roles[place % 2], "content": text} for place, text in enumerate(turns)]


def in_parts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**message, "content": as_parts(message["content"])} for message in messages]


def sizes(count: int, seed: int) -> list[tuple[int, int]]:
    """Sides from 4 to 260 pixels, with ratios below 40: both sides of every limit of these processors."""
    rng = random.Random(seed)
    return [(rng.randint(8, 260), rng.randint(8, 260)) for _ in range(count)] + [
        (4, 100),
        (100, 4),
        (260, 260),
        (28, 28),
    ]


def test_ids_are_those_of_the_models_own_processor(family: Made, tmp_path: Path) -> None:
    pairs = sizes(76, 1)
    images = [draw(tmp_path / f"{number}.png", *size) for number, size in enumerate(pairs)]
    messages = talk(ASKED, ANSWER)
    records = [
        {"messages": messages, "images": [f"{n}.png", f"{n + 1}.png"]}
        for n in range(0, len(images), 2)
    ]
    made = family.template(tmp_path).encode(records)
    assert not made.dropped
    for number in range(len(records)):
        got = made.input_ids[made.offsets[number] : made.offsets[number + 1]].tolist()
        assert got == family.ids(in_parts(messages), images[2 * number : 2 * number + 2]), pairs[
            2 * number :
        ][:2]


def test_no_token_of_an_image_is_trained_and_all_others_are_as_without_it(
    family: Made, tmp_path: Path
) -> None:
    """The mask equals that of the same conversation with a word in place of each image, token by token outside of the images."""
    draw(tmp_path / "a.png", 60, 90)
    template = family.template(tmp_path)
    turns = (ASKED, f"{ANSWER} <image> and so on.", "More?", "No.")
    record = {"messages": talk(*turns), "images": ["a.png"] * 3}
    made = template.encode([record])
    items = unpack_media(made.columns["media"].values.tobytes())
    assert [item.number for item in items] == [0, 1, 2]
    inside = np.zeros(len(made.input_ids), np.bool_)
    for item in items:
        inside[slice(*item.span)] = True
    before, after = media_reader(template).processor.counts.around
    around = [template.tokenizer.added_tokens[token] for token in (before, after) if token]
    inside |= np.isin(made.input_ids, around)
    assert not (made.loss_mask & inside).any()
    # a special token in place of each image cuts the text into the same pieces
    plain = template.encode(
        [{"messages": talk(*(turn.replace("<image>", processors.WORD) for turn in turns))}]
    )
    kept, same = ~inside, plain.input_ids != template.tokenizer.added_tokens[processors.WORD]
    texts = [
        template.decode(made.input_ids[kept & (made.loss_mask == trained)])
        for trained in (True, False)
    ]
    others = [
        template.decode(plain.input_ids[same & (plain.loss_mask == trained)])
        for trained in (True, False)
    ]
    breaks = str.maketrans(
        "", "", "\n"
    )  # Gemma's processor and InternVL's template add some next to images
    assert [text.translate(breaks) for text in texts] == [text.translate(breaks) for text in others]


def test_spans_hold_exactly_the_tokens_of_each_image(family: Made, tmp_path: Path) -> None:
    draw(tmp_path / "a.png", 60, 90)
    draw(tmp_path / "b.png", 130, 40)
    template = family.template(tmp_path)
    made = template.encode([{"messages": talk(ASKED, ANSWER), "images": ["a.png", "b.png"]}])
    first, second = unpack_media(made.columns["media"].values.tobytes())
    assert (first.size, second.size) == ((60, 90), (130, 40))
    assert (first.place, first.num_bytes) == ("a.png", (tmp_path / "a.png").stat().st_size)
    for item in (first, second):
        pieces = media_reader(template).processor.expand("image", item.size)
        text = "".join(piece * count for piece, count in pieces)
        shown = template.decode(made.input_ids[slice(*item.span)])
        assert shown.strip("\n ") == text.strip("\n ")
    between = template.decode(made.input_ids[first.span[1] : second.span[0]])
    assert "and" in between


def test_formulas_count_as_the_image_processor_does(family: Made) -> None:
    """Over thousands of sizes, by the image processor's own function; sizes that it refuses are refused."""
    files = read_processor(family.folder)
    assert files is not None
    processor = Processor(files, open_tokenizer(family.folder, fast=False).special_tokens)
    assert processor.by_formula
    rng = random.Random(2)
    sides = [
        [rng.choice((rng.randint(1, 40), rng.randint(1, 700), rng.randint(1, 6000))) for _ in "hw"]
        for _ in range(3000)
    ]
    for height, width in [*sides, [1, 200], [1, 201], [200, 1], [4096, 4096], [1, 1]]:
        try:
            expected = processor.counts.ask(processor.image_processor, height, width)
        except ValueError:
            with pytest.raises(MediaError):
                processor.counts.measure(height, width)
            continue
        assert processor.counts.measure(height, width) == expected, (height, width)


def test_a_processor_that_counts_in_another_way_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a release of transformers counts in another way, its own count is taken, and its version is part of the identity."""
    family = Made("qwen2_vl", tmp_path)
    files = read_processor(family.folder)
    assert files is not None
    usual = Processor(files, {}, Cache(tmp_path / "one"))
    kind = transformers.Qwen2VLImageProcessorPil
    before = kind.get_number_of_image_patches
    monkeypatch.setattr(kind, "get_number_of_image_patches", lambda *given: before(*given) + 4)
    other = Processor(files, {}, Cache(tmp_path / "two"))
    assert (usual.by_formula, other.by_formula) == (True, False)
    assert other.identity()["counted_by"] == f"transformers {transformers.__version__}"
    assert usual.identity()["counted_by"] == "formula 1"
    assert [usual.expand("image", (100, 60))[0][1], other.expand("image", (100, 60))[0][1]] == [
        8,
        9,
    ]
    with pytest.raises(
        MediaError, match="the processor refuses an image of 1 × 300 pixels: absolute aspect ratio"
    ):
        other.expand("image", (1, 300))


def test_a_store_key_has_the_settings_of_the_processor(family: Made, tmp_path: Path) -> None:
    template = family.template(tmp_path)
    settings = json.loads((family.folder / "processor_config.json").read_text())
    found = template.identity()["media"]["processor"]
    assert found["family"] == family.name
    assert found["image"].items() >= settings["image_processor"].items()
    assert found["processor"]["processor_class"] == settings["processor_class"]
    assert template.identity()["media"]["root"] == str(tmp_path)
