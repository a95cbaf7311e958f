"""Options of the formats of agent traces."""

from dataclasses import dataclass

from penstock.errors import SourceError
from penstock.settings import setting

SECRETS = ("mask", "keep", "refuse")
UNKNOWN = ("stop", "skip")


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Options of agent traces."""

    secrets: str = setting(
        "for agent traces: what to do with keys, tokens and names in home folders: mask (each is counted), keep, or refuse",
        "mask",
    )
    on_unknown: str = setting(
        "for agent traces: what to do with events of an unknown kind: stop, or skip, which counts them",
        "stop",
    )

    def __post_init__(self) -> None:
        for name, value, known in (
            ("secrets", self.secrets, SECRETS),
            ("on_unknown", self.on_unknown, UNKNOWN),
        ):
            if value not in known:
                raise SourceError(f"{name} is {value!r}, expected one of {', '.join(known)}")
