"""Is what users can see what we promise?  `penstock.__all__` is the list; anything else that shows is an accident."""

import types
from pathlib import Path

import penstock

ROOMS = {
    path.stem
    for path in Path(penstock.__file__).parent.iterdir()
    if path.suffix == ".py" or (path / "__init__.py").exists()
} - {"__init__"}


# Needed by the annotations of `__init__`, and kept out of `dir()` there.
ANNOTATIONS = {"TYPE_CHECKING", "Any"}


def visible(module: types.ModuleType) -> set[str]:
    """Names without an underscore, less the package's own rooms: Python adds those when they are first imported.

    `dir()` alone would believe a module that defines `__dir__`; what is really bound counts too.
    """
    bound = set(vars(module)) - ANNOTATIONS
    names = {name for name in bound | set(dir(module)) if not name.startswith("_")}
    rooms = {
        name
        for name in names
        if isinstance(getattr(module, name), types.ModuleType) and name in ROOMS
    }
    return names - rooms


def test_all_is_what_is_visible() -> None:
    promised = {name for name in penstock.__all__ if not name.startswith("_")}
    assert len(penstock.__all__) == len(set(penstock.__all__))
    assert visible(penstock) == promised


def test_a_stray_name_is_visible() -> None:
    stray = types.ModuleType("stray")
    stray.os = types  # a module that is no room of ours counts as a leak
    stray.helper = len
    stray.errors = types
    stray.__dir__ = list  # hiding it does not unbind it
    assert visible(stray) == {"os", "helper"}


def test_the_surface_is_small_and_no_verb_hides_a_room() -> None:
    assert len(penstock.__all__) <= 25
    hidden = {name for name in penstock.__all__ if name in ROOMS} - {
        name for name, value in vars(penstock).items() if isinstance(value, types.ModuleType)
    }
    assert hidden == set()


def test_every_public_name_says_what_it_is() -> None:
    silent = [
        name
        for name in penstock.__all__
        if not name.startswith("_") and not getattr(penstock, name).__doc__
    ]
    assert silent == []
