"""How tests say which error they expect: by its code.  Its text is pinned once, by tests/docs/test_words.py."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.errors import PenstockError


@contextmanager
def raises_code(code: str) -> Iterator[pytest.ExceptionInfo[PenstockError]]:
    """Expect an error of Penstock with this code."""
    with pytest.raises(PenstockError) as error:
        yield error
    assert error.value.code == code, f"{error.value.code}: {error.value}"
