"""Write docs/reference/errors.md: every code of an error, what it means, and the messages that have it.

python -m tests.docs.errors_page
"""

import ast
import inspect
import re
from collections.abc import Iterator

from penstock import errors
from penstock.errors import PenstockError

from .pages import ROOT

PAGE = ROOT / "docs" / "reference" / "errors.md"
_REMARK = "<!-- Written by `python -m tests.docs.errors_page`; a test fails when it is stale. -->"
_HEAD = f"""# Errors by code

{_REMARK}

Every error of Penstock is a `PenstockError`, and a `ValueError`. It has a `code`, which stays the same when its message is reworded: match
the code, not the text. A class has one, and cases that a program may want to tell apart have their own. The command prints the code at the
end of its message, as `[error: bad_record]`, and with `--json` as a value. [Troubleshooting](../troubleshooting.md) says what to do.

```python
from penstock.errors import PenstockError

def code_of(error: Exception) -> str | None:
    return error.code if isinstance(error, PenstockError) else None
```
"""


def classes() -> list[type[PenstockError]]:
    """The classes of errors, in the order of their tree."""
    found = [each for each in vars(errors).values() if isinstance(each, type)]
    return [each for each in found if issubclass(each, PenstockError)]


def cases() -> dict[str, list[tuple[str, str]]]:
    """Code → (file, message) of every error in the package that is made with `code=`."""
    messages: dict[str, list[tuple[str, str]]] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts = dict(_constants(tree))
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            codes = [each.value for each in node.keywords if each.arg == "code"]
            if node.args and codes and isinstance(codes[0], ast.Constant):
                file = path.relative_to(ROOT / "src" / "penstock").as_posix()
                message = message_of(node.args[0], texts)
                messages.setdefault(str(codes[0].value), []).append((file, message))
    return messages


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The texts that a module has as constants, by name."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, str(node.value.value)


def message_of(node: ast.expr, texts: dict[str, str]) -> str:
    """The text of a message, with … for what is filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Name):
        return texts.get(node.id, "…")
    if isinstance(node, ast.JoinedStr):
        parts = [message_of(part, texts) for part in node.values]
        return re.sub(r"…(\s*…)*", "…", "".join(parts))
    return "…"


def page() -> str:
    """Return the page."""
    parts = [_HEAD.rstrip(), "## Classes"]
    for error in classes():
        doc = " ".join(inspect.cleandoc(error.__doc__ or "").split())
        kind = "" if error is PenstockError else f", a `{error.__mro__[1].__name__}`"
        parts += [f"### {error.code}", f"`penstock.errors.{error.__name__}`{kind}. {doc}"]
    parts.append("## Cases\n\nErrors of one of the classes above that have a code of their own.")
    for code, messages in sorted(cases().items()):
        parts.append(f"### {code}")
        lines = [f"- `{message}` ({file})" for file, message in messages]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
