"""Assert the kind of a user's mistake, not its words."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from layerwise.errors import Code, LayerwiseError


@contextmanager
def refused(code: Code) -> Iterator[pytest.ExceptionInfo[LayerwiseError]]:
    """Expect a `LayerwiseError` of this code in the block."""
    with pytest.raises(LayerwiseError) as caught:
        yield caught
    assert caught.value.code == code, caught.value
