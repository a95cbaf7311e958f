"""Images in batches: bit-equal to the model's processor, in the order of their placeholders, whatever reads ahead."""

import json
import random
import shutil
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import MediaError, PenstockError, PlanError
from penstock.extras.media.chat_step import media_reader
from penstock.extras.media.decode import open_image
from penstock.extras.media.loader_families import open_decoder
from penstock.testing import check_resume
from tests.extras.media import vlm

pytest.importorskip("transformers")
pytest.importorskip("torch")


@pytest.fixture(scope="module", params=vlm.FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param) / request.param
    folder.mkdir()
    vlm.make_data(folder, request.param)
    return folder


@pytest.fixture(scope="module")
def store(folder: Path) -> Any:
    return vlm.prepare(folder)


def texts_and_images(folder: Path) -> list[tuple[str, list[Any]]]:
    """What each record says to transformers' own processor."""
    from transformers.image_utils import load_image

    processor = vlm.whole_processor(folder / "model", folder.name)
    found = []
    for line in (folder / "data.jsonl").read_text().splitlines():
        messages = json.loads(line)["messages"]
        parts = [part for part in messages[0]["content"] if part["type"] == "image"]
        images = [load_image(str(folder / part["image"])) for part in parts]
        found.append((processor.apply_chat_template(messages, tokenize=False), images))
    return found


def same(found: Any, expected: Any) -> None:
    """Two batches are equal, with their arrays' names and types."""
    assert list(found) == list(expected)
    for name, value in expected.items():
        a, b = np.asarray(found[name]), np.asarray(value)
        assert a.dtype == b.dtype and np.array_equal(a, b), name


def test_unpacked_batches_equal_the_processor_bit_by_bit(folder: Path, store: Any) -> None:
    processor = vlm.whole_processor(folder / "model", folder.name)
    records = texts_and_images(folder)
    loader = ps.Loader(store, batch_size=4, max_length=256, packing="none", shuffle=False)
    for number, batch in enumerate(loader):
        some = records[4 * number : 4 * number + 4]
        images = [image for _, several in some for image in several]
        made = processor(text=[text for text, _ in some], images=images or None, padding=False)
        for row, expected in zip(batch["input_ids"], made["input_ids"], strict=True):
            assert row[: len(expected)].tolist() == expected
        assert np.array_equal(batch["pixel_values"], made["pixel_values"])
        assert batch["pixel_values"].dtype == batch["pixel_values"].new_zeros(0).float().dtype
        assert np.array_equal(batch["image_grid_thw"], made["image_grid_thw"])


def test_positions_of_every_sample_are_those_of_the_model(folder: Path, store: Any) -> None:
    import torch

    model = vlm.tiny_model(folder.name).model
    image_token = vlm.trained_tokenizer().token_to_id("<|image_pad|>")
    seen = 0
    for batch in ps.Loader(store, batch_size=2, max_length=128, seed=1):
        assert batch["position_ids"].shape == (4, *batch["input_ids"].shape)
        begin, grids = 0, iter(batch["image_grid_thw"]) if "image_grid_thw" in batch else iter(())
        borders = batch["cu_seqlens"].tolist()
        flat, numbers = batch["input_ids"].reshape(-1), batch["seq_idx"].reshape(-1)
        positions = batch["position_ids"].reshape(4, -1)
        for begin, end in pairwise(borders):
            if numbers[begin] < 0:
                assert positions[:, begin:end].tolist() == [list(range(end - begin))] * 4
                continue
            types = (flat[begin:end] == image_token).long()
            count = int((torch.diff(types, prepend=torch.zeros(1)) > 0).sum())
            own = torch.stack([next(grids) for _ in range(count)]) if count else None
            expected, _ = model.get_rope_index(
                flat[None, begin:end], types[None], image_grid_thw=own
            )
            assert positions[0, begin:end].tolist() == list(range(end - begin))
            assert positions[1:, begin:end].tolist() == expected[:, 0].tolist()
            seen += count
        assert next(grids, None) is None
    assert seen == 24  # images in all records


def test_no_placeholder_has_a_label(store: Any) -> None:
    token = vlm.trained_tokenizer().token_to_id("<|image_pad|>")
    for batch in ps.Loader(store, batch_size=2, max_length=128):
        assert (batch["input_ids"] == token).any() == ("pixel_values" in batch)
        assert not (batch["labels"] == token).any()


@pytest.mark.parametrize(
    "options",
    [
        {"prefetch": 0},
        {"prefetch": 5, "media_threads": 1},
        {"media_bytes": 1},
        {"media_threads": 3},
    ],
    ids=str,
)
def test_threads_and_limits_change_nothing(store: Any, options: dict[str, Any]) -> None:
    given = {"batch_size": 2, "max_length": 128, "seed": 3}
    expected = list(ps.Loader(store, **given))
    found = list(ps.Loader(store, **given, **options))
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        same(one, other)


@pytest.mark.parametrize(
    "form",
    [
        *(
            {"padding_free": True},
            {"align": 8},
            {"pad_side": "left", "packing": "none"},
            {"labels": "shifted"},
        ),
        *({"pad_to_multiple_of": 64}, {"output": "numpy"}, {"packing": "group_4"}),
    ],
    ids=str,
)
def test_every_layout_has_the_same_images_and_positions(store: Any, form: dict[str, Any]) -> None:
    """Each sample's positions and pixels are those it has alone."""
    alone = {
        batch.rows.spans["sample"].item(): batch
        for batch in ps.Loader(
            store, batch_size=1, max_length=256, packing="none", shuffle=False, output="numpy"
        )
    }
    for batch in ps.Loader(store, **{"batch_size": 3, "max_length": 128, "seed": 2, **form}):
        positions, numbers = (
            np.asarray(batch["position_ids"]),
            np.asarray(batch["seq_idx"]).reshape(-1),
        )
        flat = positions.reshape(4, -1)
        begins = np.flatnonzero((flat[0] == 0) & (numbers >= 0))
        spans = batch.rows.spans
        for begin, span in zip(begins.tolist(), spans, strict=True):
            size = int(span["stop"])
            expected = alone[int(span["sample"])]["position_ids"][:, 0, :size]
            assert np.array_equal(flat[:, begin : begin + size], expected)
        pixels = [
            alone[sample]["pixel_values"]
            for sample in spans["sample"].tolist()
            if "pixel_values" in alone[sample]
        ]
        assert (
            np.array_equal(batch["pixel_values"], np.concatenate(pixels))
            if pixels
            else "pixel_values" not in batch
        )


def test_a_run_resumes_on_other_ranks(store: Any) -> None:
    def rows(batch: Any) -> list[Any]:
        """Each row as its spans, positions and images."""
        found, patches, taken = (
            [],
            batch.get("image_grid_thw", np.empty((0, 3), int)).prod(axis=1).tolist(),
            0,
        )
        for number, media in enumerate(batch.media):
            size = sum(patches[: len(media)])
            patches, pixels, taken = (
                patches[len(media) :],
                batch.get("pixel_values", [])[taken : taken + size],
                taken + size,
            )
            spans = batch.rows[number].tolist()
            kept = (spans, batch["position_ids"][:, number].tolist(), np.asarray(pixels).tobytes())
            found.append(kept if spans else ())
        return found

    def loader(rank: int, world_size: int) -> ps.Loader:
        given = {"batch_size": 2, "max_length": 96, "seed": 4, "output": "numpy", "rank": rank}
        return ps.Loader(store, world_size=world_size, **given)

    check_resume(loader, cuts=3, rows=rows)


def test_ranks_have_the_images_of_their_own_rows(store: Any) -> None:
    given = {"max_length": 128, "seed": 3, "output": "numpy"}
    both = [ps.Loader(store, batch_size=2, rank=rank, world_size=2, **given) for rank in (0, 1)]
    for whole, *parts in zip(ps.Loader(store, batch_size=4, **given), *both, strict=True):
        grids = [tuple(map(tuple, part.get("image_grid_thw", ()))) for part in parts]
        order = [item.place for row in whole.media for _, item in row]
        found = [item.place for part in parts for row in part.media for _, item in row]
        assert sorted(order) == sorted(found) and sum(map(len, grids)) == len(order)


def test_a_batch_says_which_files_its_images_are(folder: Path, store: Any) -> None:
    batch = next(iter(ps.Loader(store, batch_size=2, max_length=128)))
    for row, spans in zip(batch.media, batch.provenance, strict=True):
        for where, item in row:
            assert where in [each for each, _, _ in spans]
            record = json.loads(Path(where.file).read_text().splitlines()[where.line - 1])
            assert {"type": "image", "image": item.place} in record["messages"][0]["content"]


def test_a_mixture_with_a_store_without_media(
    folder: Path, store: Any, tokenizer_path: Path
) -> None:
    text = folder / "text.jsonl"
    text.write_text("".join(json.dumps({"text": f"{word} dog"}) + "\n" for word in vlm.WORDS))
    words = ps.prepare(
        text, tokenizer=folder / "model", template="text", cache_dir=folder / "cache", num_proc=1
    )
    loader = ps.Loader(
        {"images": (store, 0.5), "words": (words, 0.5)}, batch_size=2, max_length=128
    )
    batches = list(loader)
    assert {source for batch in batches for source in batch.rows.spans["source"].tolist()} == {0, 1}
    assert all(batch["position_ids"].ndim == 3 for batch in batches)


@pytest.mark.parametrize(
    "options",
    [{"packing": "concat"}, {"on_overlong": "split"}, {"on_overlong": "truncate"}],
    ids=str,
)
def test_samples_with_images_are_never_cut(store: Any, options: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="cuts samples, and column 'media' is a list"):
        ps.Loader(store, batch_size=2, max_length=64, **options)


def test_the_users_collate_is_given_the_images(store: Any) -> None:
    def collate(arrays: dict[str, Any], rows: Any) -> dict[str, Any]:
        return {**arrays, "has_images": np.array("pixel_values" in arrays)}

    for batch in ps.Loader(store, batch_size=2, max_length=128, collate=collate):
        assert bool(batch["has_images"]) == ("pixel_values" in batch)


def test_the_table_of_pixels_is_used_and_equals_the_processor(folder: Path, store: Any) -> None:
    """Sizes that are enlarged, kept and shrunk; photographs have few colours of all, noise has all of them."""
    from PIL import Image

    processor = vlm.image_processor(folder.name)
    decoder = open_decoder(media_reader(store.template).processor)
    assert decoder._table is not None
    rng = np.random.default_rng(0)
    for _ in range(40):
        height, width = rng.integers(3, 260, 2).tolist()
        image = Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))
        expected = processor(images=[image], return_tensors="np")
        pixels, grid = decoder._pixels(image)
        assert np.array_equal(pixels, expected["pixel_values"]) and np.array_equal(
            grid, expected["image_grid_thw"]
        )


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "LA", "P", "1", "CMYK", "I;16"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_an_image_is_opened_as_transformers_opens_a_path(
    tmp_path: Path, mode: str, orientation: int
) -> None:
    from PIL import Image
    from transformers.image_utils import load_image

    pixels = np.random.default_rng(1).integers(0, 256, (21, 34, 4), np.uint8)
    image = Image.fromarray(pixels, "RGBA").convert("RGB" if mode in ("P", "CMYK", "1") else "RGBA")
    image = image.convert("L").convert("I;16") if mode == "I;16" else image.convert(mode)
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / ("image.tiff" if mode == "CMYK" else "image.png")
    # transformers opens the path: Pillow does not turn TIFFs without compression that it maps into memory
    options: dict[str, Any] = {
        "P": {"transparency": bytes(range(256))},
        "CMYK": {"compression": "tiff_lzw"},
    }.get(mode, {})
    image.save(path, exif=exif, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of transparency in palettes
        expected = load_image(str(path))
    found = open_image(path.read_bytes(), (expected.height, expected.width))
    assert found.mode == "RGB" and np.array_equal(np.asarray(found), np.asarray(expected))


@pytest.mark.parametrize("transparent", ["P", "P with alpha", "RGB", "L", "I;16", "GIF"])
def test_a_transparent_colour_becomes_what_the_processor_makes_of_a_path(
    tmp_path: Path, store: Any, transparent: str
) -> None:
    from PIL import Image

    values = np.random.default_rng(2).integers(0, 5, (40, 52, 3), np.uint8) * 60
    image, path = Image.fromarray(values), tmp_path / "image.png"
    number = image.convert("P").getpixel((0, 0))
    colours = {
        "P": number,
        "P with alpha": bytes(range(200)),
        "RGB": tuple(values[0, 0].tolist()),
        "L": 60,
    }
    if transparent == "GIF":
        image.convert("P").save(path, "GIF", transparency=number)
    else:
        mode = (
            image.convert("L").convert("I;16")
            if transparent == "I;16"
            else image.convert(transparent.split()[0])
        )
        mode.save(path, transparency=colours.get(transparent, 60))
    decoder = open_decoder(media_reader(store.template).processor)
    assert decoder._table is not None
    found, _ = decoder._pixels(open_image(path.read_bytes(), (40, 52)))
    processor = media_reader(store.template).processor.image_processor
    if transparent == "I;16":  # transformers cannot convert it: the colour is not transparent then
        image = Image.fromarray(np.asarray(Image.open(path))).convert("RGB")
        expected = processor(images=[image], return_tensors="np")
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of transparency in palettes
            expected = processor(images=[str(path)], return_tensors="np")
    assert np.array_equal(found, expected["pixel_values"])


# Files that changed after `prepare`


@pytest.fixture
def own(tmp_path: Path, folder: Path) -> Path:
    """A copy, for tests that change files."""
    own = tmp_path / folder.name
    shutil.copytree(folder, own, ignore=shutil.ignore_patterns("cache"))
    return own


def load_all(store: Any, **options: Any) -> None:
    list(ps.Loader(store, batch_size=2, max_length=128, on_broken_media="stop", **options))


def test_a_broken_image_names_record_and_file(own: Path) -> None:
    store = vlm.prepare(own)
    path = own / "images" / "4-0.png"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255  # same number of bytes
    path.write_bytes(content)
    with pytest.raises(
        MediaError, match=r"data.jsonl:5: image 0, 'images/4-0.png': it cannot be decoded \(OSError"
    ):
        load_all(store)


@pytest.mark.parametrize("form", [{}, {"labels": "shifted"}, {"padding_free": True}], ids=str)
def test_a_broken_image_keeps_its_row_without_loss(
    own: Path, form: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    store = vlm.prepare(own)
    given = {"batch_size": 2, "max_length": 128, "output": "numpy", "seed": 5, **form}
    whole = list(ps.Loader(store, **given))
    (own / "images" / "4-0.png").unlink()
    content = bytearray((own / "images" / "8-1.png").read_bytes())
    content[len(content) // 2] ^= 255  # same number of bytes
    (own / "images" / "8-1.png").write_bytes(content)
    loader = ps.Loader(store, **given)
    untrained = 0
    for before, batch in zip(whole, loader, strict=True):
        assert np.array_equal(batch.rows.spans, before.rows.spans)
        for name in ("input_ids", "position_ids", "seq_idx"):
            assert np.array_equal(batch[name], before[name])
        numbers = batch["seq_idx"].reshape(-1)
        places = batch["position_ids"][0].reshape(-1)
        begins = np.flatnonzero((places == 0) & (numbers >= 0))
        labels = batch["labels"].reshape(-1)
        for begin, span in zip(begins.tolist(), batch.rows.spans, strict=True):
            inside = slice(begin, begin + int(span["stop"]))
            if span["sample"] in (4, 8):
                assert (labels[inside] == -100).all()
                untrained += 1
            else:
                assert np.array_equal(labels[inside], before["labels"].reshape(-1)[inside])
        if "pixel_values" in before:
            assert batch["pixel_values"].shape == before["pixel_values"].shape
        assert batch.trained == np.count_nonzero(batch["labels"] != -100)
    assert untrained == 2
    numbers = loader.metrics.as_dict()
    assert numbers["media"] == {"masked": 2, "untrained_samples": 2}
    assert numbers["trained_tokens"] == sum(
        np.count_nonzero(b["labels"] != -100) for b in whole
    ) - (sum(int(store[row].loss_mask[1:].sum()) for row in (4, 8)))
    for words in ("data.jsonl:5: image 0, 'images/4-0.png'", "data.jsonl:9: image 1, 'images/8-1"):
        assert sum(words in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("form", [{}, {"labels": "shifted"}, {"padding_free": True}], ids=str)
def test_a_sample_with_a_broken_image_has_no_weight_and_no_future_label(
    own: Path, form: dict[str, Any]
) -> None:
    store = vlm.prepare(own, message_weights=True)
    (own / "images" / "4-0.png").unlink()
    given = {"batch_size": 2, "max_length": 128, "output": "numpy", "seed": 5, **form}
    untrained = 0
    for batch in ps.Loader(store, future_labels=1, **given):
        numbers = batch["seq_idx"].reshape(-1)
        places = batch["position_ids"][0].reshape(-1)
        begins = np.flatnonzero((places == 0) & (numbers >= 0))
        arrays = {
            "labels": -100,
            "weights": 0,
            "future_labels": -100,
            "future_weights": 0,
        }
        for begin, span in zip(begins.tolist(), batch.rows.spans, strict=True):
            inside = slice(begin, begin + int(span["stop"]))
            for name, nothing in arrays.items():
                is_untrained = (batch[name].reshape(-1)[inside] == nothing).all()
                assert is_untrained == (span["sample"] == 4), name
            untrained += int(span["sample"] == 4)
    assert untrained == 1


def test_a_run_whose_media_are_all_gone_stops(own: Path) -> None:
    store = vlm.prepare(own)
    for image in (own / "images").iterdir():
        image.unlink()
    given = {"batch_size": 2, "max_length": 128, "epochs": 3}
    with pytest.raises(
        MediaError, match=r"cannot be read, which is more than max_dropped=0\.5 allows"
    ):
        list(ps.Loader(store, **given))
    list(ps.Loader(store, max_dropped=1, **given))


def test_another_file_in_its_place_is_noticed(own: Path) -> None:
    store = vlm.prepare(own)
    shutil.copy(own / "images" / "1-0.png", own / "images" / "4-0.png")
    with pytest.raises(
        MediaError,
        match=r"data.jsonl:5: image 0, 'images/4-0.png': .*changed since it was prepared.*refresh=True",
    ):
        load_all(store)


def test_a_refreshed_store_has_the_other_file(own: Path) -> None:
    vlm.prepare(own)
    shutil.copy(own / "images" / "1-0.png", own / "images" / "4-0.png")
    load_all(vlm.prepare(own, refresh=True))


def test_samples_that_are_too_long_are_not_told_to_be_cut(store: Any) -> None:
    with pytest.raises(
        PlanError,
        match=r"24 samples dropped \(100.0%\): overlong; raise max_length; see loader.counters",
    ):
        list(ps.Loader(store, batch_size=2, max_length=4))


def test_a_missing_file_is_named(own: Path) -> None:
    store = vlm.prepare(own)
    (own / "images" / "8-1.png").unlink()
    with pytest.raises(MediaError, match=r"data.jsonl:9: image 1, 'images/8-1.png': .*8-1.png"):
        load_all(store)


def test_another_size_with_as_many_bytes_is_noticed(own: Path) -> None:
    path = vlm.write_image(own / "images" / "1-0.bmp", 40, 60, seed=1)
    line = vlm.conversation(random.Random(1), ["images/1-0.bmp"])
    (own / "data.jsonl").write_text(json.dumps(line) + "\n")
    store = vlm.prepare(own)
    before = path.read_bytes()
    vlm.write_image(path, 60, 40, seed=1)
    assert len(path.read_bytes()) == len(before)
    with pytest.raises(
        MediaError, match=r"it has 60 × 40 pixels \(height × width\), but its header said 40 × 60"
    ):
        load_all(store)


def test_errors_come_where_their_step_is(own: Path) -> None:
    store = vlm.prepare(own)
    (own / "images" / "20-0.png").unlink()
    given = {"batch_size": 1, "max_length": 256, "packing": "none", "shuffle": False, "prefetch": 8}
    given["on_broken_media"] = "stop"
    loader, seen = ps.Loader(store, **given), []
    with pytest.raises(MediaError, match=r"data.jsonl:21"):
        for batch in loader:
            seen.append(batch.step)
    assert seen == list(range(20)) and loader.state_dict()["step"] == 20


# Columns of any name


def test_another_column_of_media_makes_another_store(own: Path) -> None:
    """Records with two columns of images: a store of one of them is not taken for a store of the other."""
    both = own / "both.jsonl"
    with both.open("w") as file:
        for number in range(4):
            messages = [
                {"role": "user", "content": "what is <image> this"},
                {"role": "assistant", "content": f"hello {number}"},
            ]
            record = {"messages": messages, "front": f"images/f{number}.png"}
            record["back"] = f"images/b{number}.png"
            vlm.write_image(own / record["front"], 40 + number, 60, seed=number)
            vlm.write_image(own / record["back"], 80 + number, 90, seed=number + 10)
            file.write(json.dumps(record) + "\n")
    given = {"tokenizer": own / "model", "cache_dir": own / "cache", "num_proc": 1}
    front = ps.prepare(both, multimodal_keys={"image": "front"}, **given)
    back = ps.prepare(both, multimodal_keys={"image": "back"}, **given)
    assert front.fingerprint != back.fingerprint
    assert front.lengths.sum() != back.lengths.sum()


def test_media_may_stand_in_columns_of_any_name(own: Path) -> None:
    usual = own / "usual.jsonl"
    named = own / "named.jsonl"
    with usual.open("w") as first, named.open("w") as second:
        for number in range(4):
            messages = [
                {"role": "user", "content": "what is <image> this"},
                {"role": "assistant", "content": f"hello {number}"},
            ]
            path = f"images/{number}-0.png"
            vlm.write_image(own / path, 40 + number, 60, seed=number)
            first.write(json.dumps({"messages": messages, "images": [path]}) + "\n")
            second.write(json.dumps({"messages": messages, "picture file": path}) + "\n")
    given = {"tokenizer": own / "model", "cache_dir": own / "cache", "num_proc": 1}
    expected = ps.prepare(usual, **given)
    keys = {"image": "picture file"}
    store = ps.prepare(named, multimodal_keys=keys, **given)
    assert store.fingerprint != expected.fingerprint
    loaders = [
        ps.Loader(each, batch_size=2, max_length=128, shuffle=False, output="numpy")
        for each in (expected, store)
    ]
    for before, batch in zip(*loaders, strict=True):
        for name in ("input_ids", "labels", "pixel_values"):
            assert np.array_equal(batch[name], before[name])
    (own / "recipe.yaml").write_text(
        f"data: named.jsonl\ntokenizer: model\nmultimodal_keys: {{image: picture file}}\n"
        f"max_length: 128\nbatch_size: 2\ncache_dir: {own / 'cache'}\n"
    )
    assert ps.load(own / "recipe.yaml").stores[0].fingerprint == store.fingerprint
    with pytest.raises(PenstockError, match="picture"):
        ps.prepare(named, multimodal_keys={"picture": "a"}, **given)
    with pytest.raises(PenstockError, match="none is left in column 'other'"):
        ps.prepare(usual, multimodal_keys={"image": "other"}, **given)
