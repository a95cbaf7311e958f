"""Errors about masks.  They are apart from what raises them, so that who catches them does not import the renderer."""

from penstock.errors import TemplateError


class Unproven(TemplateError):
    """The rendering does not show which characters a message printed."""


class RenderingsDiffer(TemplateError):
    """Two ways to find the text and mask of a conversation disagree: neither can be relied on for this template."""

    def __init__(self, what: str, record: int | None = None) -> None:
        super().__init__(f"{what}; please report the chat template", record=record)
