"""How many parameters a model has, as far as its name says so."""

from __future__ import annotations

import re

SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)\s?([mb])(?![A-Za-z])", re.IGNORECASE)
UNITS = {"m": 1e6, "b": 1e9}


def size_of(name: str) -> float | None:
    """The number of parameters in a model's name, ``pythia-410m`` or ``Llama-3-8B``; None if it
    has none or several, of which one may be that of tokens."""
    found = {float(number) * UNITS[unit.lower()] for number, unit in SIZE.findall(name)}
    return found.pop() if len(found) == 1 else None
