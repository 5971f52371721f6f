"""Add-ons: packages beside the library that bring media, kinds of figures, commands or stages.

An installed package names its modules as entry points (``pyproject.toml``)::

    [project.entry-points."layerwise.commands"]
    tools = "tools.commands"

The groups are ``layerwise.media``, ``layerwise.kinds``, ``layerwise.commands`` and
``layerwise.stages``. A module registers what it brings when it is imported, once, where the media,
kinds, commands or stages are listed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

MEDIA: list[Any] = []
"""Subclasses of `layerwise.corpora.prompts.Medium`: what prompts may be beside text."""

COMMANDS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {}
"""Functions that become commands of ``layerwise``, and their settings for typer, by name."""


@dataclass(frozen=True)
class Stage:
    """A stage of the workflow that an add-on brings.

    Attributes
    ----------
    rules : Path
        File of Snakemake rules, which use the workflow's functions.
    outputs : tuple of str
        Files below the results that every run makes.
    """

    rules: Path
    outputs: tuple[str, ...] = ()


STAGES: dict[str, Stage] = {}


@cache
def load(group: Literal["media", "kinds", "commands", "stages"]) -> None:
    """Import the modules of the add-ons of a group."""
    for entry in sorted(entry_points(group=f"layerwise.{group}")):
        entry.load()


def media() -> list[Any]:
    """The media of all add-ons."""
    load("media")
    return MEDIA


def command(name: str, **settings: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as a command; typer reads its annotations and docstring."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        COMMANDS[name] = function, settings
        return function

    return register


def stage(name: str, *, rules: Path, outputs: tuple[str, ...] = ()) -> None:
    """Register a stage of the workflow."""
    STAGES[name] = Stage(rules, outputs)
