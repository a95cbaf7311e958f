"""Write and read shard files: Arrow IPC, one record batch, readable with plain pyarrow.

    input_ids  list<uint16 | uint32>   narrowest type for the vocabulary; empty where the record was dropped
    loss_mask  list<bool>              one bit per token
    row        int32                   record number, counted from the shard's first record
    reason     uint8                   why the record was dropped: 0 if it was not, else 1 + its place among the names in `counts`
    …                                  columns that the template declares: list<dtype> per token or list, dtype per sample

Rows are counted inside the shard because a shard is named by the content of its records, not by their position.
The schema's metadata contains one JSON value under `penstock`: the shard's key, its counts, and a digest of the whole file, computed with
zeros in the two places where the file contains the digest itself.

Arrow writes the schema and the offsets of `input_ids` first.  So the beginning of a file says all that a manifest needs to know of it, and
a machine that did not make a shard does not have to download it.
"""

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.cache import Cache, Fetch
from penstock.errors import StoreError
from penstock.fingerprint import Digest, digest, fingerprint
from penstock.store.counts import Counts
from penstock.types import AnyTemplate, Bools, Column, Ints, Samples, Values, columns_of

if TYPE_CHECKING:
    import pyarrow as pa  # imported where it is used: 30 ms

FORMAT_VERSION = 5  # raise when the same samples give other bytes; announced under "On-disk format"

_KEY = re.compile(r"[0-9a-f]{32}")
_METADATA = b"penstock"
_MAX_VALUES = (1 << 31) - 1  # Arrow's list offsets are int32
_OWN_COLUMNS = ("input_ids", "loss_mask", "row", "reason")
_MOST_REASONS = 255  # of one shard
_HEAD_BYTES = 1 << 16  # more than the schema takes; the offsets of all rows follow
_DIGEST = re.compile(rb'"digest":"([0-9a-f]{32})"')
_ZEROS = "0" * 32
_MAKE_AGAIN = "pass refresh=True to make it again"
_PER = ("token", "sample", "list")
# Types of declared columns.  Without bool: Arrow packs it into bits, which numpy cannot view.
_DTYPES = [
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
]
_COLUMNS_KEY = "sample_columns"  # in a template's identity

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Schema:
    """What samples consist of: ids of a vocabulary, and the columns that the template declares."""

    vocab_size: int
    columns: tuple[Column, ...] = ()

    @classmethod
    def of(cls, template: AnyTemplate) -> "Schema":
        """The schema of a template's samples; raise StoreError where a column cannot be stored."""
        columns = columns_of(template)
        names = [column.name for column in columns]
        for column in columns:
            where = f"{type(template).__name__} declares column {column.name!r}"
            if column.name in _OWN_COLUMNS or names.count(column.name) > 1:
                raise StoreError(f"{where}: the name is taken, choose another one")
            if column.per not in _PER:
                raise StoreError(f"{where} per {column.per!r}, expected one of {', '.join(_PER)}")
            if column.dtype not in _DTYPES:
                raise StoreError(
                    f"{where} of dtype {column.dtype!r}, expected one of {', '.join(_DTYPES)}"
                )
        return cls(template.vocab_size, columns)

    @classmethod
    def from_identity(cls, vocab_size: int, identity: dict[str, Any]) -> "Schema":
        """The schema of samples whose template had this identity, as `template_identity` returns it."""
        return cls(vocab_size, tuple(Column(**column) for column in identity.get(_COLUMNS_KEY, ())))

    @property
    def id_dtype(self) -> np.dtype[Any]:
        """The narrowest type for all ids."""
        return np.dtype("<u2") if self.vocab_size <= 1 << 16 else np.dtype("<u4")

    def to_arrow(self, metadata: dict[str, Any] | None = None) -> "pa.Schema":
        """Return the schema of a shard file in Arrow; metadata is written into it as JSON."""
        import pyarrow as pa

        id_type = pa.from_numpy_dtype(self.id_dtype)
        fields = [
            ("input_ids", pa.list_(id_type)),
            ("loss_mask", pa.list_(pa.bool_())),
            ("row", pa.int32()),
            ("reason", pa.uint8()),
        ]
        for column in self.columns:
            value_type = pa.from_numpy_dtype(np.dtype(column.dtype))
            is_one_value = column.per == "sample"
            fields.append((column.name, value_type if is_one_value else pa.list_(value_type)))
        if not metadata:
            return pa.schema(fields)
        text = json.dumps(metadata, sort_keys=True, separators=(",", ":"))
        return pa.schema(fields, metadata={_METADATA: text.encode()})


def template_identity(template: AnyTemplate) -> dict[str, Any]:
    """What a template adds to the keys of its shards: its identity, and the columns that it declares."""
    columns = [asdict(column) for column in columns_of(template)]
    return {**template.identity(), _COLUMNS_KEY: columns} if columns else template.identity()


def shard_key(records: str, template: dict[str, Any]) -> str:
    """The key of a shard: the digest of its records, and everything that makes tokens of them."""
    return fingerprint({"format": FORMAT_VERSION, "records": records, "template": template})


def shard_name(key: str) -> str:
    """Return the name of a shard in the cache; raise StoreError if `key` is not a key, for example a path."""
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise StoreError(
            f"{key!r} is not a shard key, expected 32 hex digits; the manifest that names it is damaged"
        )
    return f"shards/{key[:2]}/{key}.arrow"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEntry:
    """One published shard: its key, its file's size and digest, and its counts."""

    key: str
    num_bytes: int
    counts: Counts
    digest: str  # of every byte of the file but the digest itself

    @property
    def file(self) -> Fetch:
        return Fetch(shard_name(self.key), self.num_bytes, self._check)

    def matches(self, data: memoryview) -> bool:
        """Return whether the bytes are those of this shard."""
        return _is_whole(data, self.digest)

    def _check(self, data: memoryview) -> None:
        """Raise StoreError if the bytes are not those of this shard."""
        if not self.matches(data):
            raise StoreError("its bytes are not those that were written")

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "ShardEntry":
        """An entry as `asdict` wrote it."""
        return cls(**{**value, "counts": Counts.from_json(value["counts"])})


def check_samples(samples: Samples, num_records: int, schema: Schema) -> None:
    """Raise StoreError if a template, which may be the user's own, returned inconsistent samples."""
    ids = samples.input_ids
    offsets = samples.offsets
    if len(offsets) - 1 != num_records:
        raise StoreError(f"the template gave {len(offsets) - 1} samples for {num_records} records")
    if len(ids) and int(ids.max()) >= schema.vocab_size:
        raise StoreError(
            f"the template gave id {int(ids.max())}, expected ids below its vocab_size {schema.vocab_size}"
        )
    if len(samples.loss_mask) != len(ids):
        raise StoreError(
            f"the template gave {len(ids)} ids and a loss mask of {len(samples.loss_mask)}"
        )
    if not _are_offsets(offsets, num_records, len(ids)):
        raise StoreError("the template gave offsets that do not rise from 0 to the number of ids")
    if wrong := set(np.flatnonzero(np.diff(offsets) == 0).tolist()) ^ set(samples.dropped):
        raise StoreError(
            f"the template gave record {min(wrong)} no tokens and no reason, or tokens and a reason for dropping it"
        )
    if undeclared := samples.columns.keys() - {column.name for column in schema.columns}:
        raise StoreError(
            f"the template gave column {min(undeclared)!r}, which it does not declare in `columns`"
        )
    for column in schema.columns:
        if column.name not in samples.columns:
            raise StoreError(
                f"the template declares column {column.name!r}, but gave no values for it"
            )
        if problem := _column_problem(samples.columns[column.name], column, num_records, len(ids)):
            raise StoreError(f"the template gave column {column.name!r} {problem}")


def _column_problem(found: Values, column: Column, num_records: int, num_tokens: int) -> str | None:
    values = found.values
    offsets = found.offsets
    if values.dtype != np.dtype(column.dtype) or values.ndim != 1:
        return f"as {values.dtype} of {values.ndim} dimensions, expected {column.dtype} of 1 dimension, as declared"
    expected = {"token": num_tokens, "sample": num_records, "list": len(values)}[column.per]
    if len(values) != expected:
        return f"with {len(values)} values, expected {expected}: one per {column.per}"
    if (offsets is not None) != (column.per == "list"):
        return f"with offsets {offsets}, expected them only for a column per list"
    if offsets is not None and not _are_offsets(offsets, num_records, len(values)):
        return f"with offsets that do not rise from 0 to its {len(values)} values"
    return None


def _are_offsets(offsets: Array, num_records: int, num_values: int) -> bool:
    is_complete = len(offsets) == num_records + 1 and offsets[0] == 0 and offsets[-1] == num_values
    return bool(is_complete and (np.diff(offsets) >= 0).all())


def encode_shard(samples: Samples, schema: Schema, key: str) -> tuple[bytearray, ShardEntry]:
    """The bytes of a shard file, and its entry.  The file contains its key, so a file under a wrong name is noticed."""
    import pyarrow as pa

    counts = Counts.of(samples)
    _check_sizes(samples, counts)
    metadata = {
        "format": FORMAT_VERSION,
        "key": key,
        "counts": asdict(counts),
        "digest": _ZEROS,
    }
    arrow = schema.to_arrow(metadata)
    columns = _columns_on_disk(samples, schema, counts)
    arrays = [_arrow_array(field.type, columns[field.name], counts.rows) for field in arrow]
    file = pa.BufferOutputStream()
    with pa.ipc.new_file(file, arrow) as writer:
        writer.write_batch(pa.record_batch(arrays, schema=arrow))
    data = bytearray(file.getvalue())
    own_digest = digest(data)
    for start in _places_of_digest(data):
        data[start : start + len(_ZEROS)] = own_digest.encode()
    return data, ShardEntry(key=key, num_bytes=len(data), counts=counts, digest=own_digest)


def _check_sizes(samples: Samples, counts: Counts) -> None:
    flat = [samples.input_ids, *(values.values for values in samples.columns.values())]
    longest = max(map(len, flat))
    if longest > _MAX_VALUES:
        raise StoreError(
            f"{longest} values in one shard, expected at most {_MAX_VALUES}: split its records"
        )
    if len(counts.dropped) > _MOST_REASONS:
        raise StoreError(
            f"records of one shard are dropped for {len(counts.dropped)} reasons, expected at most {_MOST_REASONS}: let the template say "
            f"what is special about a record in a note, not in the reason"
        )


@dataclass(frozen=True, slots=True)
class _OnDisk:
    """The buffers of one column.  offsets: of lists, as int32."""

    values: Array
    length: int  # of the values
    offsets: Array | None = None


def _columns_on_disk(samples: Samples, schema: Schema, counts: Counts) -> dict[str, _OnDisk]:
    ids = samples.input_ids.astype(schema.id_dtype, copy=False)
    offsets = samples.offsets.astype("<i4")
    bits = np.packbits(samples.loss_mask, bitorder="little")
    codes = {reason: code for code, reason in enumerate(counts.dropped, start=1)}
    reasons = np.zeros(counts.rows, np.uint8)
    for row, reason in samples.dropped.items():
        reasons[row] = codes[reason]
    columns = {
        "input_ids": _OnDisk(ids, len(ids), offsets),
        "loss_mask": _OnDisk(bits, len(ids), offsets),
        "row": _OnDisk(np.arange(counts.rows, dtype="<i4"), counts.rows),
        "reason": _OnDisk(reasons, counts.rows),
    }
    for column in schema.columns:
        declared = samples.columns[column.name]
        little = declared.values.dtype.newbyteorder("<")
        values = np.ascontiguousarray(declared.values, little)
        lists = None
        if column.per == "token":
            lists = offsets
        elif declared.offsets is not None:
            lists = declared.offsets.astype("<i4")
        columns[column.name] = _OnDisk(values, len(values), lists)
    return columns


def _arrow_array(kind: "pa.DataType", column: _OnDisk, num_rows: int) -> "pa.Array":
    """Not `pa.array`, which imports pandas if it is installed: 0.3 s in every process."""
    import pyarrow as pa

    def flat(kind: "pa.DataType") -> "pa.Array":
        return pa.Array.from_buffers(kind, column.length, [None, pa.py_buffer(column.values)])

    if column.offsets is None:
        return flat(kind)
    buffers = [None, pa.py_buffer(column.offsets)]
    return pa.Array.from_buffers(kind, num_rows, buffers, children=[flat(kind.value_type)])


def _places_of_digest(data: bytearray | memoryview) -> list[int]:
    """Where a shard file contains its digest: in the schema at the beginning, and in the copy of the schema at the end.

    Ids between them may look like anything, so they are not searched.
    """
    footer = max(0, len(data) - 10 - int.from_bytes(data[-10:-6], "little"))
    places = [_DIGEST.search(data), _DIGEST.search(data, footer)]
    return sorted({place.start(1) for place in places if place is not None})


def _is_whole(data: memoryview, expected: str) -> bool:
    """Whether the bytes of a shard file, with zeros in the places of the digest, have the digest that it contains and is expected."""
    content = Digest()
    done = 0
    for start in _places_of_digest(data):
        stop = start + len(_ZEROS)
        if data[start:stop] != expected.encode():
            return False
        content.extend(data[done:start])
        content.extend(_ZEROS.encode())
        done = stop
    content.extend(data[done:])
    return content.hexdigest() == expected


def check_bytes(data: memoryview, expected: str, where: Path | str) -> None:
    """Compare a whole shard file with its digest."""
    if not _is_whole(data, expected):
        raise StoreError(
            f"{where}: damaged (its bytes are not those that were written: a disk or a copy has changed them); "
            f"{_MAKE_AGAIN}, and run `penstock verify` to find all such files"
        )


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class ShardTokens:
    """Samples of a shard, flat, as views of its file: sample i is `input_ids[offsets[i]:offsets[i + 1]]`."""

    input_ids: npt.NDArray[np.unsignedinteger[Any]]  # (num_tokens,) uint16 or uint32
    offsets: npt.NDArray[np.int32]  # (num_rows + 1,)
    mask_bits: npt.NDArray[
        np.uint8
    ]  # (ceil(num_tokens / 8),) token t is trained if bit t % 8 of byte t // 8 is set
    columns: dict[
        str, Values
    ]  # as the template declares them; a dropped sample has a value per sample, too
    counts: Counts
    reasons: npt.NDArray[np.uint8]  # (num_rows,) as `reason` names them
    batch: "pa.RecordBatch"  # all of it, as Arrow

    @property
    def reason_names(self) -> tuple[str, ...]:
        """What the codes in `reasons` mean, from 1 on."""
        return tuple(self.counts.dropped)

    def reason(self, sample: int) -> str:
        """Why a record was dropped; "" if it was not."""
        code = self.reasons.item(sample)
        return self.reason_names[code - 1] if code else ""

    def column_of(self, column: Column, sample: int) -> Any:
        """The values of one sample: a view, or one value of a column per sample."""
        column_values = self.columns[column.name]
        if column.per == "sample":
            return column_values.values[sample]
        offsets = self.offsets if column_values.offsets is None else column_values.offsets
        return column_values.values[offsets.item(sample) : offsets.item(sample + 1)]

    def loss_mask(self, start: int, stop: int) -> Bools:
        """True where tokens start..stop of the shard are trained."""
        if start >= stop:
            return np.zeros(0, dtype=np.bool_)
        first = start // 8
        bits = np.unpackbits(self.mask_bits[first : (stop + 7) // 8], bitorder="little")
        return bits[start - 8 * first : stop - 8 * first].view(np.bool_)

    def any_trained(self, starts: Ints, stops: Ints) -> Bools:
        """Whether a token of start..stop is trained, for each range.  Reads the bits of the ranges, not of the shard."""
        has_trained = stops > starts
        if self.counts.trained == self.counts.tokens:
            return has_trained
        first = starts[has_trained]
        last = stops[has_trained] - 1
        low = first >> 3
        high = (last >> 3) + 1
        if not low.size:
            return has_trained
        bits = memoryview(self.mask_bits)  # type: ignore[arg-type]  # numpy's types do not say that arrays are buffers
        joined = bytearray().join(map(bits.__getitem__, map(slice, low.tolist(), high.tolist())))
        flat = np.frombuffer(joined, np.uint8)
        ends = np.cumsum(high - low)
        begins = ends - (high - low)
        flat[begins] &= (0xFF << (first & 7)).astype(np.uint8)  # bits of earlier tokens
        flat[ends - 1] &= (0xFF >> (7 - (last & 7))).astype(np.uint8)  # bits of later ones
        has_trained[has_trained] = np.bitwise_or.reduceat(flat, begins) > 0
        return has_trained


# Files that this process has compared with their digests: hashes of device, inode, size and times.  A copy that is kept in memory by the
# system stays as it was read, so once is enough, for all stores and epochs of a process.
_COMPARED: set[int] = set()


def is_to_be_compared(status: os.stat_result, cache: Cache) -> bool:
    """Whether the content of a file is to be compared with its digest before it is used; `compared` notes that it was."""
    if cache.verify == "first":
        return _version(status) not in _COMPARED
    return cache.verify == "always"


def compared(status: os.stat_result) -> None:
    """Note that the content of a file is that of its digest."""
    _COMPARED.add(_version(status))


def _version(status: os.stat_result) -> int:
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return hash((status.st_dev, status.st_ino, status.st_size, *times))


def open_shard(
    key: str,
    cache: Cache,
    schema: Schema,
    *,
    num_rows: int,
    num_bytes: int | None = None,
    file_digest: str | None = None,
) -> ShardTokens:
    """Map a published shard; raise StoreError if it does not match its name.

    Sizes, header and offsets are always checked.  Content is compared with its digest when this process maps the file for the first time,
    or as `cache.verify` says: a flipped bit of a token is not trained.  file_digest: as the manifest says; without it, the digest in the
    file itself counts.
    """
    import pyarrow as pa

    name = shard_name(key)
    path = cache.path(name)

    def read(name: str) -> ShardTokens:
        with cache.place.opened(name) as fd:
            status = os.fstat(fd)
            if num_bytes not in (None, status.st_size):
                raise StoreError(
                    f"{path}: {status.st_size} bytes, expected {num_bytes}; remove the file, it will be made again"
                )
            # Not `cache.map`: a map of Python keeps a descriptor, and a store maps a thousand shards.
            with pa.memory_map(_reopened(fd, path)) as file:
                tokens, own_digest = _parse(file, path, key, schema, num_rows=num_rows)
                if is_to_be_compared(status, cache):
                    file.seek(0)
                    check_bytes(memoryview(file.read_buffer()), file_digest or own_digest, path)
                    compared(status)
            return tokens

    tokens = cache.reading(name, read)
    cache.keep_open(name, tokens)
    return tokens


def read_shard(
    key: str, cache: Cache, schema: Schema, *, num_rows: int
) -> tuple[ShardTokens, ShardEntry]:
    """A published shard and its entry, after every byte of it was read and checked."""
    import pyarrow as pa

    data = cache.read(shard_name(key))
    path = cache.path(shard_name(key))
    shard, own_digest = _parse(pa.BufferReader(data), path, key, schema, num_rows=num_rows)
    check_bytes(memoryview(data), own_digest, path)
    trained = int(np.bitwise_count(shard.mask_bits).sum())
    if trained != shard.counts.trained:
        raise StoreError(
            f"{path}: damaged ({trained} trained tokens, expected {shard.counts.trained}); {_MAKE_AGAIN}"
        )
    entry = ShardEntry(key=key, num_bytes=len(data), counts=shard.counts, digest=own_digest)
    return shard, entry


def read_summary(key: str, cache: Cache, *, num_rows: int) -> "tuple[ShardEntry, Ints]":
    """The entry of a published shard and the lengths of its samples, from the beginning of its file.  Tokens are not checked."""
    import pyarrow as pa

    name = shard_name(key)
    path = cache.path(name)
    num_bytes = cache.size(name)
    data = cache.read_start(name, _HEAD_BYTES + 4 * (num_rows + 1))
    try:
        # A file is a stream behind eight bytes: the schema, then the batch, which begins with its own description.
        stream = pa.BufferReader(data[8:])
        metadata = _metadata(pa.ipc.read_schema(stream), key)
        batch = 8 + stream.tell()
        body = batch + 8 + int.from_bytes(data[batch + 4 : batch + 8], "little")
        offsets = np.frombuffer(data, "<i4", count=num_rows + 1, offset=body).astype(np.int64)
        counts = Counts.from_json(metadata["counts"])
        if counts.rows != num_rows or not _are_offsets(offsets, num_rows, counts.tokens):
            raise ValueError("counts and offsets disagree")
        own_digest = str(metadata["digest"])
    except _NOT_A_SHARD as error:
        raise _damaged(path, error) from error
    except pa.ArrowException as error:
        raise _damaged(path, error) from error
    entry = ShardEntry(key=key, num_bytes=num_bytes or 0, counts=counts, digest=own_digest)
    return entry, np.diff(offsets)


_NOT_A_SHARD = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def _damaged(path: Path, error: Exception) -> StoreError:
    return StoreError(f"{path}: damaged ({error}); {_MAKE_AGAIN}")


def _metadata(schema: "pa.Schema", key: str) -> dict[str, Any]:
    metadata: dict[str, Any] = json.loads(schema.metadata[_METADATA])
    if metadata["format"] != FORMAT_VERSION:
        raise ValueError(f"format {metadata['format']}, expected {FORMAT_VERSION}")
    if metadata["key"] != key:
        raise ValueError(f"it is shard {metadata['key']}, expected {key}")
    return metadata


def _reopened(fd: int, path: Path) -> str:
    """A path for an open file: pyarrow takes no descriptors, and the file's own path may name another file by now."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        if Path(folder).is_dir():
            return f"{folder}/{fd}"
    return str(path)


def _parse(
    file: "pa.NativeFile", path: Path, key: str, schema: Schema, *, num_rows: int
) -> tuple[ShardTokens, str]:
    """The samples of an open shard file, which keep its memory alive, and the digest that it contains."""
    import pyarrow as pa

    try:
        reader = pa.ipc.open_file(file)
        metadata = _metadata(reader.schema, key)
        expected = schema.to_arrow()
        if not reader.schema.equals(expected):
            raise ValueError(
                f"columns {_described(reader.schema)}, expected {_described(expected)}"
            )
        if reader.num_record_batches != 1:
            raise ValueError(f"{reader.num_record_batches} record batches, expected 1")
        batch = reader.get_batch(0)  # zero-copy; keeps the map alive after the file is closed
        batch.validate()  # a damaged header may promise more than the file holds
        if batch.num_rows != num_rows:
            raise ValueError(f"{batch.num_rows} rows, expected {num_rows}")
        shard = _views(batch, Counts.from_json(metadata["counts"]), schema)
        return shard, str(metadata["digest"])
    except OSError as error:  # also pyarrow's error for a file that ends too early
        raise StoreError(
            f"{path}: cannot be read: {error}; check the disk, or pass refresh=True"
        ) from error
    except _NOT_A_SHARD as error:
        raise _damaged(path, error) from error
    except pa.ArrowException as error:
        raise _damaged(path, error) from error


def _described(schema: "pa.Schema") -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def _views(batch: "pa.RecordBatch", counts: Counts, schema: Schema) -> ShardTokens:
    flat = {
        name: getattr(array, "values", array)
        for name, array in zip(batch.schema.names, batch.columns, strict=True)
    }
    if any(array.null_count for array in (*batch.columns, *flat.values())):
        raise ValueError("values are missing")

    def values(name: str, dtype: npt.DTypeLike, length: int) -> Array:
        return np.frombuffer(flat[name].buffers()[1], dtype)[:length]

    def starts(name: str) -> npt.NDArray[np.int32]:
        offsets = np.frombuffer(batch.column(name).buffers()[1], "<i4")[: len(batch) + 1]
        if not _are_offsets(offsets, len(batch), len(flat[name])):
            raise ValueError(f"offsets and values of {name} disagree")
        return offsets

    columns = {}
    for column in schema.columns:
        little = np.dtype(column.dtype).newbyteorder("<")
        declared = values(column.name, little, len(flat[column.name]))
        lists = starts(column.name) if column.per == "list" else None
        columns[column.name] = Values(declared, lists)
    num_tokens = len(flat["input_ids"])
    per_token = ["loss_mask", *(column.name for column in schema.columns if column.per == "token")]
    if (counts.rows, counts.tokens) != (len(batch), num_tokens):
        raise ValueError("counts, offsets and ids disagree")
    if any(len(flat[name]) != num_tokens for name in per_token):
        raise ValueError("counts, offsets and ids disagree")
    reasons = values("reason", np.uint8, len(batch))
    dropped = [part.count for part in counts.dropped.values()]
    if np.bincount(reasons, minlength=1 + len(dropped)).tolist() != [counts.samples, *dropped]:
        raise ValueError("counts and reasons disagree")
    return ShardTokens(
        input_ids=values("input_ids", schema.id_dtype, num_tokens),
        offsets=starts("input_ids"),
        mask_bits=values("loss_mask", np.uint8, (num_tokens + 7) // 8),
        columns=columns,
        counts=counts,
        reasons=reasons,
        batch=batch,
    )
