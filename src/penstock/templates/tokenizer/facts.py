"""Facts about tokenizers and templates: computed once for each content and version of our code, and remembered in the cache."""

import contextlib
import re
import sys
from collections.abc import Callable
from functools import cache as once
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from penstock import plugins
from penstock.cache import Cache
from penstock.cache.memo import CONTENT, memo
from penstock.fingerprint import Digest

_METADATA = re.compile(r"([\w.]+)-([^-]+)\.dist-info")
_TEMPLATES = Path(__file__).parent.parent


def recall(kind: str, *, about: Any, compute: Callable[[], Any], cache: Cache | None) -> Any:
    """Return the fact `kind` about `about`: from the cache, or computed and left there; without a cache, kept for this process.

    about: a JSON value with every input of `compute`: digests of contents, options, versions; never a path or a time.  The code that
    computes needs no version: its digest is a part of what is asked.
    """
    whole = [about, code_digest(), list(sys.version_info[:3])]
    return memo(f"template-{kind}", whole, CONTENT, compute, cache)


@once
def code_digest() -> str:
    """A digest of the code of templates: of this package, and of the packages whose plugins are record shapes or steps."""
    code = Digest()
    code.update(
        package_version("penstock").encode()
    )  # all there is where source files are not installed
    for folder in [_TEMPLATES, *_folders_of_plugins()]:
        for path in sorted(folder.rglob("*.py")):
            code.update(path.relative_to(folder).as_posix().encode())
            code.update(path.read_bytes())
    return code.hexdigest()


def _folders_of_plugins() -> list[Path]:
    names = {name for group in ("templates", "template_steps") for name in plugins.modules(group)}
    specs = [find_spec(name) for name in names]
    files = [Path(spec.origin) for spec in specs if spec is not None and spec.origin is not None]
    return sorted({file.parent for file in files})


@once
def package_version(name: str) -> str:
    """The version of an installed package, from the name of its metadata folder: `importlib.metadata` is slow to import."""
    version_found = _installed().get(name)
    if version_found is not None:
        return version_found
    from importlib.metadata import version

    return version(name)


@once
def _installed() -> dict[str, str]:
    """Versions of packages by name; the first on the path counts."""
    found: dict[str, str] = {}
    for folder in sys.path:
        with contextlib.suppress(OSError):
            names = [_METADATA.fullmatch(path.name) for path in Path(folder or ".").iterdir()]
            found = {**{match[1].lower(): match[2] for match in names if match}, **found}
    return found
