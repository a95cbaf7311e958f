"""Is a shard encoded as one, though its records come in parts?"""

from itertools import islice

import numpy as np
import pytest


@pytest.mark.parametrize("size", [1, 7, 40, 1000])
def test_conversations_in_parts_are_the_conversations_as_a_whole(size: int) -> None:
    """Some are refused, some have a turn that the others have not: parts change neither tokens nor places."""
    from tests.templates.conversations import chat

    text = (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
        "<{{ m.role }}>{{ m.content | trim }}{{ eos_token }}{% endfor %}"
    )
    template = chat(text, on_refused="skip")
    roles = ("user", "assistant", "user", "assistant", "tool", "assistant")
    rows = [
        {
            "messages": [
                {"role": role, "content": f" the fox {row} "}
                for role in roles[: 2 + row % 4 + (row % 9 == 8)]
            ]
        }
        for row in range(100)
    ]
    whole, rest = template.encode(rows), iter(rows)
    parts = [template.encode(part) for part in iter(lambda: list(islice(rest, size)), [])]
    for name in ("input_ids", "loss_mask"):
        assert np.array_equal(
            np.concatenate([getattr(part, name) for part in parts]), getattr(whole, name)
        ), name
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    assert np.array_equal(lengths, np.diff(whole.offsets)) and whole.dropped
    dropped = {
        size * number + row: why
        for number, part in enumerate(parts)
        for row, why in part.dropped.items()
    }
    assert dropped == whole.dropped
