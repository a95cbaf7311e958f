"""Read the event files that TensorBoard reads: length, checksum, event, checksum."""

import struct
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """Return the values by name and step of all event files below a folder."""
    found: dict[str, dict[int, float]] = {}
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        data = path.read_bytes()
        place = 0
        while place < len(data):
            (size,) = struct.unpack_from("<Q", data, place)
            event = Event.FromString(data[place + 12 : place + 12 + size])
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = value.simple_value
            place += 12 + size + 4
    return found
