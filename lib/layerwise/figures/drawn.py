"""What every kind of study gives back."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from layerwise.errors import printable

# What marks up text, and what makes an address.
MARKUP = re.compile(r"[\\*`_|<>\[\]@]|:(?=\S)")
# How text begins that is no list, directive, comment or rule.
ORDINARY = re.compile(r"\w+(?![.)\w])")


@dataclass(frozen=True)
class Drawn:
    """A figure with what stands behind it.

    Attributes
    ----------
    figure : matplotlib Figure
    table : DataFrame
        The numbers drawn, all of them and no others.
    title : str
        The finding, computed from the data.
    caption : str
        What is shown and on how much data, as reStructuredText.
    facts : dict
        The numbers in title and caption, for whoever wants them apart.
    """

    figure: Figure
    table: pd.DataFrame
    title: str
    caption: str
    facts: dict[str, Any]

    def rst(self) -> str:
        """Title and caption as reStructuredText; names cannot be taken for markup."""
        return f"**{plain(self.title)}**\n\n{plain(self.caption)}\n"


def plain(text: str) -> str:
    """Text in one line in which reStructuredText finds no markup, directive or address."""
    one_line = " ".join(printable(text).split())
    # An escaped space is none.
    start = "" if not one_line or ORDINARY.match(one_line) else "\\ "
    return start + MARKUP.sub(r"\\\g<0>", one_line)
