"""Does every shape, and every view of it, keep the contract of a source; also for threads and forked processes?"""

import csv
import gzip
import io
import json
import multiprocessing
import random
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.cache import Cache
from penstock.fingerprint import digest
from penstock.sources import BadRows, ListSource, RowAccess, formats, open_source
from penstock.sources.parse import record_bytes
from penstock.testing import check_source
from tests.extras.formats import token_files

Records = list[dict[str, Any]]

RECORDS: Records = [
    {"row": row, "text": f"Zeile {row} 🙂 " * (row % 7), "tags": ["a"] * (row % 3)}
    for row in range(300)
]
FLAT: Records = [
    {"row": str(row), "text": f'Zeile {row}, "quoted"\nover lines' * (row % 4)}
    for row in range(300)
]
TEXTS: Records = [{"text": f"line {row} " + "x" * (row % 50)} for row in range(300)]


@dataclass(frozen=True)
class Made:
    """A place, what it must hold, and what it may weigh."""

    place: Any
    expected: Records
    max_pickle: int | None = 20_000
    options: dict[str, Any] = field(default_factory=dict)


def halves(records: Records) -> Iterator[tuple[int, Records]]:
    return enumerate([records[:120], records[120:]])


def jsonl(folder: Path) -> Made:
    for number, part in halves(RECORDS):
        text = "".join(json.dumps(record) + "\n" for record in part)
        (folder / f"p-{number}.jsonl").write_text(text)
    return Made(folder, RECORDS)


def json_document(folder: Path) -> Made:
    (folder / "a.json").write_text(json.dumps(RECORDS, indent=2))
    return Made(folder / "a.json", RECORDS)


def table(folder: Path) -> Made:
    for number, part in halves(FLAT):
        with (folder / f"p-{number}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, ["row", "text"])
            writer.writeheader()
            writer.writerows(part)
    return Made(folder, FLAT)


def text(folder: Path) -> Made:
    (folder / "a.txt").write_text("".join(record["text"] + "\n" for record in TEXTS))
    return Made(folder / "a.txt", TEXTS)


def parquet(folder: Path) -> Made:
    for number, part in halves(RECORDS):
        pq.write_table(
            pa.Table.from_pylist(part), folder / f"p-{number}.parquet", row_group_size=50
        )
    return Made(folder, RECORDS)


def parquet_chunks(folder: Path) -> Made:
    made = parquet(folder)
    files = [
        {"path": f"p-{number}.parquet", "samples": len(part)} for number, part in halves(RECORDS)
    ]
    (folder / "metadata.json").write_text(
        json.dumps({"total_samples": len(RECORDS), "batch_files": files})
    )
    return made


def write_stream(path: Path, records: Records) -> None:
    content = pa.Table.from_pylist(records)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, content.schema) as writer:
        writer.write_table(content, max_chunksize=40)


def arrow(folder: Path) -> Made:
    for number, part in halves(RECORDS):
        write_stream(folder / f"p-{number}.arrow", part)
    return Made(folder, RECORDS)


def hf(folder: Path) -> Made:
    for split, part in (("test", RECORDS[:10]), ("train", RECORDS)):
        (folder / split).mkdir()
        write_stream(folder / split / "data-00000-of-00001.arrow", part)
        files = [{"filename": "data-00000-of-00001.arrow"}]
        (folder / split / "state.json").write_text(
            json.dumps({"_data_files": files, "_split": split})
        )
        (folder / split / "dataset_info.json").write_text("{}")
    (folder / "dataset_dict.json").write_text('{"splits": ["test", "train"]}')
    return Made(folder / "train", RECORDS)


def pt(folder: Path) -> Made:
    torch = pytest.importorskip("torch", reason="the extra penstock[torch] is not installed")
    expected = [{"ids": np.arange(5) + row} for row in range(60)]
    for number, first in enumerate((0, 25)):
        last = (25, 60)[number]
        rows = torch.arange(first, last)[:, None] + torch.arange(5)
        torch.save({"ids": rows}, folder / f"c-{number}.pt")
    files = [{"path": "c-0.pt", "samples": 25}, {"path": "c-1.pt", "samples": 35}]
    (folder / "metadata.json").write_text(json.dumps({"total_samples": 60, "batch_files": files}))
    return Made(folder, expected)


def yaml_list(folder: Path) -> Made:
    made = jsonl(folder)
    (folder / "list.yaml").write_text('datasets:\n- path: p-0.jsonl\n- path: "p-*.jsonl@[120:]"\n')
    return Made(folder / "list.yaml", made.expected)


def webdataset(folder: Path) -> Made:
    expected: Records = []
    for number, part in halves(RECORDS):
        with tarfile.open(folder / f"p-{number}.tar", "w") as tar:
            for record in part:
                key = f"below/{record['row']}"
                for name, data in (
                    (f"{key}.json", json.dumps(record).encode()),
                    (f"{key}.jpg", b"x" * record["row"]),
                ):
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
        with tarfile.open(folder / f"p-{number}.tar") as tar:
            found = {member.name: member for member in tar}
        for record in part:
            member = found[f"below/{record['row']}.jpg"]
            at = {"start": member.offset_data, "num_bytes": member.size}
            image = {"bytes": None, "path": str(folder / f"p-{number}.tar"), **at}
            expected.append(
                {"__key__": f"below/{record['row']}", **record, "jpg": image, "images": [image]}
            )
    return Made(folder, expected)


def media_folder(folder: Path) -> Made:
    for row in range(3):
        (folder / f"{row}.png").write_bytes(b"x" * row)
    lines = [json.dumps({"file_name": f"{record['row'] % 3}.png", **record}) for record in RECORDS]
    (folder / "metadata.jsonl").write_text("\n".join(lines))
    images = [{"bytes": None, "path": str(folder / f"{row}.png")} for row in range(3)]
    return Made(folder, [{"image": images[record["row"] % 3], **record} for record in RECORDS])


def sample_folder(folder: Path) -> Made:
    expected: Records = []
    for record in RECORDS[:60]:
        key = str(record["row"])
        (folder / f"{key}.png").write_bytes(b"x")
        (folder / f"{key}.json").write_text(json.dumps(record))
        image = {"bytes": None, "path": str(folder / f"{key}.png")}
        expected.append({"__key__": key, **record, "png": image, "images": [image]})
    return Made(folder, expected, max_pickle=None)  # it names every file


IDS = [[row % 50 + 1] * (row % 11) + [0] for row in range(300)]  # 0 ends each
OF_IDS: Records = [{"input_ids": np.array(row, np.uint16)} for row in IDS]


def megatron(folder: Path) -> Made:
    for number, part in enumerate([IDS[:120], IDS[120:]]):
        token_files.write_megatron(folder / f"p-{number}", part)
    return Made(folder, OF_IDS)


def token_bin(folder: Path) -> Made:
    for number, part in enumerate([IDS[:120], IDS[120:]]):
        (folder / f"p-{number}.bin").write_bytes(token_files.ids_bytes(part, "u2"))
    return Made(folder, OF_IDS, options={"dtype": "uint16", "eot": 0})


def datatrove(folder: Path) -> Made:
    masks = [[place % 2 for place in range(len(row))] for row in IDS]
    token_files.write_datatrove(folder / "a.ds", IDS, masks=masks)
    expected = [
        {**record, "loss_mask": np.array(mask, np.bool_)}
        for record, mask in zip(OF_IDS, masks, strict=True)
    ]
    return Made(folder, expected)


def mds(folder: Path) -> Made:
    rows = [(row, f"Quelle {number}") for number, row in enumerate(IDS)]
    token_files.write_mds(folder, [rows[:120], rows[120:]])
    return Made(
        folder, [{"source": source, "tokens": np.array(row, np.int32)} for row, source in rows]
    )


def litdata(folder: Path) -> Made:
    items = [
        token_files.litdata_item(np.array(row, "<i8").tobytes(), str(row).encode()) for row in IDS
    ]
    formats = ("no_header_tensor:17", "str")
    token_files.write_litdata(
        folder, [items[:120], items[120:]], names=("input_ids", "text"), formats=formats
    )
    return Made(folder, [{"input_ids": np.array(row), "text": str(row)} for row in IDS])


def compressed(folder: Path) -> Made:
    (folder / "a.jsonl.gz").write_bytes(
        gzip.compress("".join(json.dumps(r) + "\n" for r in RECORDS).encode())
    )
    return Made(folder / "a.jsonl.gz", RECORDS)


def in_memory(folder: Path) -> Made:
    return Made(RECORDS, RECORDS, max_pickle=None)


def stream(folder: Path) -> Made:
    return Made(_stream, RECORDS)


def _stream() -> Iterator[dict[str, Any]]:
    return iter(RECORDS)


OF_THE_CORE: dict[str, Callable[[Path], Made]] = {
    "jsonl": jsonl,
    "json": json_document,
    "csv": table,
    "text": text,
    "parquet": parquet,
    "arrow": arrow,
    "hf": hf,
}
OF_MEDIA: dict[str, Callable[[Path], Made]] = {
    "webdataset": webdataset,
    "media_folder": media_folder,
    "sample_folder": sample_folder,
}
OF_FORMATS: dict[str, Callable[[Path], Made]] = {
    "parquet_chunks": parquet_chunks,
    "pt": pt,
    "yaml": yaml_list,
    "megatron": megatron,
    "token_bin": token_bin,
    "datatrove": datatrove,
    "mds": mds,
    "litdata": litdata,
}
OF_SHAPES = {**OF_THE_CORE, **OF_MEDIA, **OF_FORMATS}
ALL = [
    *OF_THE_CORE.values(),
    compressed,
    in_memory,
    stream,
    *(pytest.param(make, marks=pytest.mark.extra("media")) for make in OF_MEDIA.values()),
    *(pytest.param(make, marks=pytest.mark.extra("formats")) for make in OF_FORMATS.values()),
]


@pytest.mark.extra("all")
def test_every_shape_is_here() -> None:
    """The formats of traces are in tests/extras/traces."""
    of_traces = {name for name, shape in formats().items() if ".extras.traces." in shape.code}
    assert {*OF_THE_CORE, *OF_MEDIA, *OF_FORMATS, *of_traces} == set(formats())


@pytest.fixture(params=ALL, ids=lambda make: make.__name__)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    (tmp_path / "data").mkdir()
    found: Made = request.param(tmp_path / "data")
    return found


def keep(record: dict[str, Any]) -> bool:
    return int(digest(record_bytes(record)), 16) % 3 > 0


def widen(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "wide": True}


def views(source: RowAccess, expected: Records) -> list[tuple[RowAccess, Records]]:
    train, test = source.train_test_split(test_size=7, seed=3)
    picked = [5, 3, 3, -1]
    return [
        (source, expected),
        (source[10:-10:3], expected[10:-10:3]),
        (source.select(picked), [expected[row] for row in picked]),
        (source.filter(keep), [record for record in expected if keep(record)]),
        (source.map(widen), [widen(record) for record in expected]),
        (ps.concat([test, train[:5]]), [*test, *train[:5]]),
    ]


def test_shapes_and_their_views_keep_the_contract(made: Made, cache: Cache) -> None:
    source = open_source(made.place, cache=cache, **made.options)
    for view, expected in views(source, made.expected):
        check_source(view, expected=expected, max_pickle=made.max_pickle)
        assert type(source).__name__ in repr(view) or "Concat" in repr(view)
    again = open_source(made.place, cache=cache, **made.options)
    assert again.digest(0, len(again)) == source.digest(0, len(source))
    assert str(source.describe()).count("\n") >= 2


def reads_right(view: RowAccess, expected: list[bytes], seed: int) -> bool:
    chance = random.Random(seed)
    rows = [chance.randrange(len(expected)) for _ in range(30)]
    start = chance.randrange(len(expected))
    single = all(record_bytes(view[row]) == expected[row] for row in rows)
    return (
        single
        and [record_bytes(record) for record in view.records(start, len(expected))]
        == expected[start:]
    )


def test_threads_may_share_a_view(made: Made, cache: Cache) -> None:
    source = open_source(made.place, cache=cache, **made.options)
    pairs = [
        (view, list(map(record_bytes, expected))) for view, expected in views(source, made.expected)
    ]
    with ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(reads_right, *pairs[seed % len(pairs)], seed) for seed in range(24)]
        assert all(answer.result() for answer in asked)


_SHARED: list[tuple[RowAccess, list[bytes]]] = []


def _reads_shared(seed: int) -> bool:
    return reads_right(*_SHARED[seed % len(_SHARED)], seed)


def test_forked_processes_may_share_a_view(made: Made, cache: Cache) -> None:
    source = open_source(made.place, cache=cache, **made.options)
    pairs = [
        (view, list(map(record_bytes, expected))) for view, expected in views(source, made.expected)
    ]
    assert all(
        reads_right(view, expected, 0) for view, expected in pairs
    )  # all is open and in use before the fork
    _SHARED[:] = pairs
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        assert all(pool.map(_reads_shared, range(12)))


class Broken(ListSource):
    """A source with one fault."""

    fault = ""

    def __getattribute__(self, name: str) -> Any:
        fault = object.__getattribute__(self, "fault")
        found = object.__getattribute__(self, name)
        if name == "records" and fault == "records":
            return lambda start, stop: found(max(0, start - 1), max(0, stop - 1) if start else stop)
        if name == "locate" and fault == "locate":
            return lambda row: found(0 if row < 0 else row)
        if name == "digest" and fault == "digest":
            return lambda start, stop: "same"
        if name == "cuts" and fault == "cuts":
            return lambda **asked: np.array([0, len(self)])
        return found

    def __getitem__(self, row: Any) -> Any:
        found = super().__getitem__(
            abs(row) if self.fault == "negative" and isinstance(row, int) else row
        )
        return (
            {**found, "n": float(found["n"])}
            if self.fault == "types" and isinstance(row, int)
            else found
        )

    def __iter__(self) -> Iterator[Any]:
        return iter(list(super().__iter__())[: -1 if self.fault == "iteration" else None])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_records": self._records[: 3 if self.fault == "pickle" else None]}


@pytest.mark.parametrize(
    "fault", ["records", "locate", "digest", "cuts", "negative", "types", "iteration", "pickle"]
)
def test_the_contract_bites(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Broken([{"n": number} for number in range(20)])
    check_source(source)
    monkeypatch.setattr(Broken, "fault", fault)
    with pytest.raises((AssertionError, IndexError)):
        check_source(source)


def test_the_contract_knows_what_was_expected(tmp_path: Path, cache: Cache) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\nbad\n')
    source = open_source(tmp_path / "a.jsonl", cache=cache, bad=BadRows("skip"))
    check_source(source, expected=[{"a": 1}, None])
    for wrong in ([{"a": 1}], [{"a": 1.0}, None], [{"a": 1}, {}], [{"a": True}, None]):
        with pytest.raises(AssertionError, match="expected"):
            check_source(source, expected=wrong)
    with pytest.raises(AssertionError, match="bytes to send it to a process, expected at most 10"):
        check_source(source, max_pickle=10)
