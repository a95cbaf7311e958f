"""Can this text steer a terminal?  Not after this: whatever comes from data, file names or errors goes through here first."""

import unicodedata

_JOINERS = {"\u200c", "\u200d"}  # within words of some languages, and of emoji; they move nothing
_STEERING = {
    "Cc",
    "Cf",
    "Cs",
    "Zl",
    "Zp",
}  # control, format (bidi among them), half characters, line and paragraph ends


def escape(text: object, *, keep: str = "") -> str:
    """Text in which every character that could steer a terminal, or hide, is spelled out; but those in `keep`."""
    plain = str(text)
    if plain.isascii() and plain.isprintable():
        return plain
    return "".join(char if char in keep or not _steers(char) else _spelled(char) for char in plain)


def _steers(char: str) -> bool:
    return unicodedata.category(char) in _STEERING and char not in _JOINERS


def _spelled(char: str) -> str:
    number = ord(char)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
