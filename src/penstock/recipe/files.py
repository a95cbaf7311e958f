"""May this file be written?  Not over another one, unless told to."""

from pathlib import Path

from penstock.errors import RecipeError


def write_new(path: Path, text: str | None, *, force: bool) -> None:
    """Write a recipe; with text None only ask whether it could be."""
    if path.exists() and not force:
        raise RecipeError(f"{path}: is there already; choose another name, or --force to replace it")
    if text is None:
        if not path.absolute().parent.is_dir():
            raise RecipeError(f"{path}: its folder is not there; make it first")
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"{path}: cannot be written: {error.strerror or error}") from error
