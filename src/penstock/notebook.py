"""How a notebook shows a value: as the plugin of the group `notebook` for its class draws it, or as its repr without such a plugin."""

from typing import TypeVar

from penstock import plugins

Shown = TypeVar("Shown", bound=type)


def shown_in_notebooks(kind: Shown) -> Shown:
    """Give a class `_repr_html_`, which notebooks call.  The plugin has the name of the class, or of one above it."""
    kind._repr_html_ = _html  # type: ignore[attr-defined]
    return kind


def _html(value: object) -> str | None:
    known = plugins.names("notebook")
    for kind in type(value).__mro__:
        if kind.__name__ in known:
            html: str | None = plugins.load("notebook", kind.__name__)(value)
            return html
    return None
