"""Images of Pillow in records that are given as Python objects: they read as PNG files with their pixels."""

import io
import sys
from typing import Any

from penstock.fingerprint import digest

# What PNG holds.  Other modes become RGB, as the loader would convert them.
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")


class Images:
    """Images of Pillow: a plugin of the group "values"."""

    def matches(self, value: object) -> bool:
        module = sys.modules.get("PIL.Image")  # imported if there is an image
        return module is not None and isinstance(value, module.Image)

    def to_bytes(self, value: Any) -> bytes:
        file = io.BytesIO()
        _upright(value).save(file, "PNG", compress_level=1)
        return file.getvalue()

    def digest(self, value: Any) -> str:
        """Return a digest of what is seen.  Not of the PNG: its bytes depend on the version of zlib."""
        upright = _upright(value)
        colours = upright.getpalette("RGBA") if upright.mode == "P" else None
        transparency = upright.info.get("transparency")
        form = repr([upright.mode, upright.size, colours, transparency]).encode()
        return digest(form + b"\0" + upright.tobytes())


IMAGES = Images()


def _upright(image: Any) -> Any:
    """Return an image as it is seen, in a mode that PNG holds: what its file would be read as."""
    from PIL import ImageOps

    upright = ImageOps.exif_transpose(image)
    return upright if upright.mode in _PNG_MODES else upright.convert("RGB")
