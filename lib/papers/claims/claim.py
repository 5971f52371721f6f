"""A claim of a paper, the authors' numbers about it, and the verdict that follows from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from papers.tables import Release

Verdict = Literal["reproduced", "not reproduced", "mixed", "cannot be checked"]


class Number(NamedTuple):
    """One of the authors' numbers about a claim.

    Attributes
    ----------
    words : str
    supports : bool or None
        None for a number that the claim doesn't speak of; it stands beside the others.
    """

    words: str
    supports: bool | None = None

    def __str__(self) -> str:
        marks = {True: f"{self.words} ✓", False: f"{self.words} ✗", None: f"({self.words})"}
        return marks[self.supports]


Check = Callable[[Release], Iterable[Number]]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of a paper.

    Attributes
    ----------
    says : str
        The claim, in our words.
    section : str
        Section of the paper; of its version 1 if it has several.
    figure : str
    version_2 : str
        Section, figure or table of version 2, where we know it.
    supported_if : str
        The condition, with its threshold, under which a number supports the claim.
    decides : str
        Data that would decide the claim beyond the authors' numbers.
    check : callable
        Computes the authors' numbers.
    """

    says: str
    section: str = ""
    figure: str = ""
    version_2: str = ""
    supported_if: str = ""
    decides: str
    check: Check

    @property
    def where(self) -> str:
        """Section and figure in version 1, and in version 2 where we know it."""
        first = ", ".join(place for place in (self.section, self.figure) if place)
        second = f"version 2: {self.version_2}" if self.version_2 else ""
        return "; ".join(version for version in (first, second) if version)


def claim(**about: str) -> Callable[[Check], Claim]:
    """Make a claim of the function below it, which yields the authors' numbers."""
    return lambda check: Claim(check=check, **about)


def verdict(numbers: Iterable[Number]) -> Verdict:
    """Verdict of a claim: all, some or none of the numbers support it, or there are none."""
    supports = [number.supports for number in numbers if number.supports is not None]
    if not supports:
        return "cannot be checked"
    if all(supports):
        return "reproduced"
    return "mixed" if any(supports) else "not reproduced"


def signed(value: float, decimals: int = 1) -> str:
    """A number with a true minus sign."""
    return f"{value:.{decimals}f}".replace("-", "−")
