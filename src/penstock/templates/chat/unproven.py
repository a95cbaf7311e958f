"""The error for a mask that cannot be proven.  It is apart from the proof, so that who catches it does not import the renderer."""

from penstock.errors import TemplateError


class Unproven(TemplateError):
    """The rendering does not show which characters a message printed."""
