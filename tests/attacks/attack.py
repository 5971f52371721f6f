"""What every attack must end in, and the tally of how they ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from layerwise.errors import LayerwiseError

T = TypeVar("T")

RIGHT, SENTENCE, REFUSED = "right value", "one sentence", "refused at the start"
LONGEST = 800


class Tally:
    """Counts attacks by area and outcome."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def note(self, area: str, outcome: str) -> None:
        self.counts[area, outcome] += 1

    def attack(
        self, area: str, action: Callable[[], T], *, outcome: str = SENTENCE
    ) -> tuple[str | None, T | None]:
        """The one sentence of an error, or the result; anything else that is raised goes on.

        Parameters
        ----------
        outcome : what a sentence counts as
        """
        try:
            result = action()
        except LayerwiseError as error:
            is_a_sentence(str(error))
            self.note(area, outcome)
            return str(error), None
        self.note(area, RIGHT)
        return None, result


def is_a_sentence(message: str) -> None:
    """One line, in plain characters, and not a page of it."""
    assert message
    assert message.isprintable(), ascii(message)
    assert len(message) < LONGEST, message
    assert "bug in layerwise" not in message
    assert "Traceback" not in message


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Iterator[Any]:
    made = Tally()
    yield made
    counted = [[*key, n] for key, n in made.counts.items()]
    request.node.user_properties.append(("attacks", counted))
