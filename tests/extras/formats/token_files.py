"""Writers and readers of other tools' files, written from the descriptions of their formats and from nothing of Penstock."""

import gzip
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

CODES = {"u1": 1, "i1": 2, "i2": 3, "i4": 4, "i8": 5, "u2": 8}


def ids_bytes(rows: Sequence[Sequence[int]], kind: str) -> bytes:
    return b"".join(np.array(row, f"<{kind}").tobytes() for row in rows)


def write_megatron(
    prefix: Path,
    rows: Sequence[Sequence[int]],
    kind: str = "u2",
    documents: Sequence[int] | None = None,
) -> None:
    """`documents`: where each begins, and the number of sequences."""
    Path(f"{prefix}.bin").write_bytes(ids_bytes(rows, kind))
    size, at = int(kind[1]), 0
    lengths, starts = b"", b""
    for row in rows:
        lengths += struct.pack("<i", len(row))
        starts += struct.pack("<q", at)
        at += size * len(row)
    edges = range(len(rows) + 1) if documents is None else documents
    header = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, CODES[kind], len(rows), len(edges))
    Path(f"{prefix}.idx").write_bytes(
        header + lengths + starts + b"".join(struct.pack("<q", edge) for edge in edges)
    )


def read_megatron(prefix: Path) -> tuple[str, list[list[int]], list[int]]:
    """Return the type of ids, the sequences, and where documents begin."""
    raw = Path(f"{prefix}.idx").read_bytes()
    assert raw[:9] == b"MMIDIDX\x00\x00"
    version, code, count, edges = struct.unpack("<QBQQ", raw[9:34])
    assert version == 1
    kind = {code: kind for kind, code in CODES.items()}[code]
    lengths = struct.unpack(f"<{count}i", raw[34 : 34 + 4 * count])
    starts = struct.unpack(f"<{count}q", raw[34 + 4 * count : 34 + 12 * count])
    documents = struct.unpack(f"<{edges}q", raw[34 + 12 * count :])
    ids = Path(f"{prefix}.bin").read_bytes()
    rows = [
        np.frombuffer(ids, f"<{kind}", n, at).tolist()
        for n, at in zip(lengths, starts, strict=True)
    ]
    assert len(ids) == int(kind[1]) * sum(lengths)
    return kind, rows, list(documents)


def write_datatrove(
    path: Path,
    rows: Sequence[Sequence[int]],
    kind: str = "u2",
    masks: Sequence[Sequence[int]] | None = None,
) -> None:
    path.write_bytes(ids_bytes(rows, kind))
    Path(f"{path}.index").write_bytes(np.cumsum([len(row) for row in rows]).astype("<u8").tobytes())
    if masks is not None:
        Path(f"{path}.loss").write_bytes(b"".join(bytes(mask) for mask in masks))


def write_llm_c(path: Path, rows: Sequence[Sequence[int]], magic: int = 20240520) -> None:
    kind, version = ("u2", 1) if magic == 20240520 else ("u4", 7)
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, sum(map(len, rows))
    path.write_bytes(header.tobytes() + ids_bytes(rows, kind))


def write_borders(path: Path, rows: Sequence[Sequence[int]]) -> None:
    ends = np.cumsum([len(row) for row in rows]).tolist()
    lines = [
        f"{end - len(row)},{end},id-{n},file.jsonl.gz,{n}"
        for n, (row, end) in enumerate(zip(rows, ends, strict=True))
    ]
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))


def chunk(rows: Sequence[bytes], head: bytes = b"") -> bytes:
    """A number of rows, where each begins, `head`, and the rows."""
    at = 4 + 4 * (len(rows) + 1) + len(head)
    starts = [at + sum(map(len, rows[:row])) for row in range(len(rows) + 1)]
    return struct.pack(f"<{len(starts) + 1}I", len(rows), *starts) + head + b"".join(rows)


def write_mds(folder: Path, shards: Sequence[Sequence[tuple[Sequence[int], str]]]) -> None:
    """Shards of rows with two columns: source (text) and tokens (ndarray:int32)."""
    folder.mkdir(exist_ok=True)
    listed: list[dict[str, Any]] = []
    columns = {"column_names": ["source", "tokens"], "column_encodings": ["str", "ndarray:int32"]}
    for number, rows in enumerate(shards):
        made = []
        for tokens, source in rows:
            text = source.encode()
            shape = bytes([(1 << 2) | 1]) + struct.pack(
                "<H", len(tokens)
            )  # one axis, its length as u16
            values = shape + np.array(tokens, "<i4").tobytes()
            made.append(struct.pack("<II", len(text), len(values)) + text + values)
        entry = {
            **columns,
            "column_sizes": [None, None],
            "compression": None,
            "format": "mds",
            "hashes": [],
            "version": 2,
        }
        raw = chunk(made, json.dumps(entry, sort_keys=True).encode())
        name = f"shard.{number:05}.mds"
        (folder / name).write_bytes(raw)
        listed.append(
            {
                **entry,
                "samples": len(rows),
                "size_limit": 1 << 26,
                "zip_data": None,
                "raw_data": {"basename": name, "bytes": len(raw), "hashes": {}},
            }
        )
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": listed}))


def write_litdata(
    folder: Path,
    chunks: Sequence[Sequence[bytes]],
    *,
    names: Sequence[str],
    formats: Sequence[str],
    **config: Any,
) -> None:
    """Chunks of items that are dicts with these leaves; each item is given as its bytes."""
    folder.mkdir(exist_ok=True)
    leaf = {"type": None, "context": None, "children_spec": []}
    spec = (
        {
            "type": "builtins.dict",
            "context": json.dumps(list(names)),
            "children_spec": [leaf] * len(names),
        }
        if names
        else leaf
    )
    listed = []
    for number, items in enumerate(chunks):
        raw = chunk(items)
        name = f"chunk-0-{number}.bin"
        (folder / name).write_bytes(raw)
        listed.append(
            {"chunk_bytes": len(raw), "chunk_size": len(items), "dim": None, "filename": name}
        )
    config = {
        "compression": None,
        "data_format": list(formats),
        "data_spec": json.dumps([1, spec]),
        "encryption": None,
        "item_loader": "PyTreeLoader",
        **config,
    }
    (folder / "index.json").write_text(json.dumps({"chunks": listed, "config": config}))


def litdata_item(*leaves: bytes) -> bytes:
    return struct.pack(f"<{len(leaves)}I", *map(len, leaves)) + b"".join(leaves)
