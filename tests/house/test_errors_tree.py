"""Is the tree at the top of errors.py the tree that the classes form?"""

import inspect

from penstock import errors


def drawn(picture: str) -> dict[str, str]:
    """Child → parent, read off the drawing: a name's column says how deep it hangs."""
    parents: dict[str, str] = {}
    above: list[tuple[int, str]] = []  # the path from the root to the last line read, with columns
    for line in picture.splitlines():
        stripped = line.lstrip(" │├└─")
        name = stripped.split(" ")[0]
        is_root = line.strip() == "PenstockError"
        if not (is_root or "── " in line):
            continue
        column = len(line) - len(stripped)
        while above and above[-1][0] >= column:
            above.pop()
        if above:
            parents[name] = above[-1][1]
        above.append((column, name))
    return parents


def test_the_drawing_is_the_tree() -> None:
    classes = {
        name: kind
        for name, kind in vars(errors).items()
        if inspect.isclass(kind)
        and issubclass(kind, Exception)
        and kind.__module__ == errors.__name__
    }
    written = {
        name: kind.__bases__[0].__name__
        for name, kind in classes.items()
        if name != "PenstockError"
    }
    assert written
    assert drawn(errors.__doc__ or "") == written


def test_a_drawing_is_read_by_its_columns() -> None:
    picture = "x\n\n    PenstockError\n    ├── A      one ── not a branch\n    │   └── B\n    └── C\n\ntext below"
    assert drawn(picture) == {"A": "PenstockError", "B": "A", "C": "PenstockError"}


def test_every_error_is_a_value_error_and_says_what_it_is() -> None:
    for name in [*drawn(errors.__doc__ or ""), "PenstockError"]:
        kind = getattr(errors, name)
        assert issubclass(kind, ValueError)
        assert kind.__doc__
