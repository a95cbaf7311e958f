"""Bytes in records that are given as Python objects, and objects that stand for bytes, such as images of Pillow.

Such a record reads as if they were files: bytes stay bytes, and an object becomes the bytes of a file.  In the content that names a store,
each is represented by a digest.
"""

from typing import Any, Protocol

from penstock import plugins
from penstock.fingerprint import digest

_Path = list[str | int]  # the keys and list positions that lead to a value
_PLAIN = (str, int, float, bool, type(None))


class BytesLike(Protocol):
    """A kind of objects that stand for the bytes of a file: a plugin of the group "values"."""

    def matches(self, value: object) -> bool: ...

    def to_bytes(self, value: Any) -> bytes: ...

    def digest(self, value: Any) -> str:
        """Return a digest of what the object shows, which is the same with every version of every library."""


class _Bytes:
    def matches(self, value: object) -> bool:
        return isinstance(value, bytes | bytearray | memoryview)

    def to_bytes(self, value: bytes | bytearray | memoryview) -> bytes:
        return bytes(value)

    def digest(self, value: bytes | bytearray | memoryview) -> str:
        return digest(bytes(value))


_BYTES = _Bytes()


def _kind_of(value: object) -> BytesLike | None:
    if type(value) in _PLAIN:
        return None
    if _BYTES.matches(value):
        return _BYTES
    return next((kind for _, kind in plugins.every("values") if kind.matches(value)), None)


def copied(value: Any) -> Any:
    """Return a copy of a record with bytes in place of what stands for bytes: a map function may change it."""
    if type(value) is dict:
        return {key: copied(inner) for key, inner in value.items()}
    if type(value) is list:
        return [copied(inner) for inner in value]
    kind = _kind_of(value)
    return value if kind is None else kind.to_bytes(value)


def take_bytes(record: Any) -> tuple[Any, list[tuple[_Path, str]]]:
    """Return a record with null in place of bytes, and where each was, with a digest of its content."""
    taken: list[tuple[_Path, str]] = []
    return _without_bytes(record, [], taken), taken


def _without_bytes(value: Any, path: _Path, taken: list[tuple[_Path, str]]) -> Any:
    if type(value) is dict:
        return {key: _without_bytes(inner, [*path, key], taken) for key, inner in value.items()}
    if type(value) is list:
        return [_without_bytes(inner, [*path, number], taken) for number, inner in enumerate(value)]
    kind = _kind_of(value)
    if kind is None:
        return value
    taken.append((path, kind.digest(value)))
    return None
