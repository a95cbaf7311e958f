"""The members of a tar archive, found by their 512-byte headers.  Nothing is unpacked, and the data of members is not read.

Reads ustar, GNU (long names, large numbers) and PAX (path, size).  Links, devices, sparse files and unknown types are members with a
problem.  A header that cannot be read, a member that reaches beyond the file, a file without the end mark, and data behind the end mark
are damage: no member behind it can be found.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.places.place import File
from penstock.sources.index import blocks

BLOCK = 512
_ZEROS = bytes(BLOCK)
_MAX_EXTENDED = 1 << 20  # bytes of a long name or of PAX fields
_OCTAL = re.compile(rb" *([0-7]*)[ \0]*")
_PAX_LENGTH = re.compile(rb"([0-9]{1,7}) ")

_FILES = (b"0", b"\0", b"7")
_PROBLEMS = {
    b"1": "is a hard link",
    b"2": "is a symbolic link",
    b"3": "is a device",
    b"4": "is a device",
    b"6": "is a pipe",
    b"S": "is a sparse file",
    b"M": "is a part of a file on another volume",
}
_NO_DATA = b"123456"  # types whose header may give a size, although no data follows


class TarDamage(Exception):
    """Where a tar cannot be read on, and why.  name: of the member that is cut off."""

    def __init__(self, byte: int, why: str, name: str = "") -> None:
        super().__init__(why)
        self.byte = byte
        self.why = why
        self.name = name


@dataclass(frozen=True, slots=True)
class Member:
    """One file, folder or other entry of a tar."""

    name: str
    header: int  # byte of its first header
    start: int  # byte of its data
    num_bytes: int
    is_folder: bool = False
    problem: str = ""  # why it is not a file that can be read

    @property
    def end(self) -> int:
        """The byte behind its data and the padding, where the next header is."""
        return self.start + -(-self.num_bytes // BLOCK) * BLOCK


def members(file: File) -> Iterator[Member]:
    """Yield all members, front to back; raise TarDamage where that ends too early."""
    at = 0
    while (member := read_member(file, at)) is not None:
        yield member
        at = member.end
    for position, block in blocks(file, at, file.identity.size):
        if block.any():
            found = position + int(block.argmax())
            raise TarDamage(
                found, "there is data behind the end mark; were two tars joined? write them as one"
            )


def read_member(file: File, at: int) -> Member | None:
    """Read the header at a byte, with the long name or PAX fields before it; None at the end mark."""
    header = at
    name = None
    size = None
    problem = ""
    while True:
        block = _header(file, at)
        if block is None and at == header:
            return None
        if block is None:
            raise TarDamage(at, "a long name or PAX fields are followed by no member")
        kind = block[156:157]
        declared = _number(block[124:136], at, "a size")
        at += BLOCK
        if kind not in b"LKxXg":
            break
        payload = _payload(file, at, declared)
        at += -(-declared // BLOCK) * BLOCK
        if kind == b"L":
            name = payload.partition(b"\0")[0] if name is None else name
        elif kind != b"K":
            fields = _pax(payload, at)
            if kind == b"g" and fields.keys() & {b"path", b"size"}:
                raise TarDamage(at, "PAX fields for the whole tar give a path or a size")
            name = fields.get(b"path") if name is None else name
            size = _decimal(fields[b"size"], at) if size is None and b"size" in fields else size
            if any(field.startswith(b"GNU.sparse.") for field in fields):
                problem = _PROBLEMS[b"S"]
    if kind == b"S":
        at = _behind_sparse(file, at, block)
    is_folder = kind == b"5" or (kind == b"\0" and block[:100].partition(b"\0")[0].endswith(b"/"))
    num_bytes = 0 if kind in _NO_DATA else declared if size is None else size
    text, unreadable = _text(_short_name(block) if name is None else name.rstrip(b"/"))
    if at + num_bytes > file.identity.size:
        why = f"{text!r} has {num_bytes:,} bytes, but the file ends at byte {file.identity.size}; is it cut off?"
        raise TarDamage(header, why, text)
    if kind not in _FILES and not is_folder:
        problem = _PROBLEMS.get(kind, f"has the unknown type {kind!r}")
    return Member(text, header, at, num_bytes, is_folder, problem or unreadable)


def _header(file: File, at: int) -> bytes | None:
    """Return a header whose checksum is right; None at the end mark."""
    if at + BLOCK > file.identity.size:
        raise TarDamage(
            at, f"the file ends at byte {file.identity.size} without an end mark; is it cut off?"
        )
    block = file.read(at, at + BLOCK)
    if block == _ZEROS:
        return None
    given = _number(block[148:156], at, "a checksum")
    total = sum(block) - sum(block[148:156]) + 8 * ord(" ")
    if given != total and given != total - 256 * sum(
        byte > 127 for byte in block[:148] + block[156:]
    ):
        raise TarDamage(
            at, f"the header has the checksum {total}, but says {given}"
        )  # some old writers add signed bytes
    return block


def _number(field: bytes, at: int, what: str) -> int:
    """Return a number: octal digits, or binary where they do not suffice."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    found = _OCTAL.fullmatch(field.partition(b"\0")[0])
    if found is None:
        raise TarDamage(at, f"the header gives {field!r} as {what}, expected octal digits")
    return int(found[1] or b"0", 8)


def _decimal(value: bytes, at: int) -> int:
    if not re.fullmatch(rb"[0-9]{1,19}", value):
        raise TarDamage(at, f"PAX fields give the size {value[:40]!r}, expected digits")
    return int(value)


def _payload(file: File, at: int, num_bytes: int) -> bytes:
    """Return the data of a header that describes the next one."""
    if num_bytes > _MAX_EXTENDED or at + num_bytes > file.identity.size:
        raise TarDamage(at - BLOCK, f"a long name or PAX fields of {num_bytes:,} bytes")
    return file.read(at, at + num_bytes)


def _pax(payload: bytes, at: int) -> dict[bytes, bytes]:
    """Parse lines such as `30 path=a.jpg`, whose number is the length of the line."""
    fields: dict[bytes, bytes] = {}
    position = 0
    while position < len(payload) and payload[position]:  # zeros may follow
        found = _PAX_LENGTH.match(payload, position)
        line = payload[found.end() : position + int(found[1])] if found else b""
        key, equals, value = line[:-1].partition(b"=")
        if (
            found is None
            or not equals
            or line[-1:] != b"\n"
            or position + int(found[1]) > len(payload)
        ):
            raise TarDamage(at, "PAX fields are damaged")
        fields[key] = value
        position += int(found[1])
    return fields


def _short_name(block: bytes) -> bytes:
    """Return the name that a header itself gives."""
    name = block[:100].partition(b"\0")[0]
    prefix = (
        block[345:500].partition(b"\0")[0] if block[257:263] == b"ustar\0" else b""
    )  # GNU has times there
    return (prefix + b"/" + name if prefix else name).rstrip(b"/")


def _text(name: bytes) -> tuple[str, str]:
    """Return a name as text, and what is wrong with it."""
    try:
        return name.decode(), ""
    except UnicodeDecodeError:
        return name.decode(errors="replace"), "has a name that is not UTF-8"


def _behind_sparse(file: File, at: int, block: bytes) -> int:
    """Return the byte behind the maps of a sparse file."""
    more = block[482]
    while more:
        if at + BLOCK > file.identity.size:
            raise TarDamage(at, "the map of a sparse file is cut off")
        more = file.read(at, at + BLOCK)[504]
        at += BLOCK
    return at
