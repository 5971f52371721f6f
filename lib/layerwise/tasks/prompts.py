"""Prompts in front of the texts of tasks.

A model's prompts are by name, as in sentence-transformers and mteb: of a task and prompt type
(``STS12-query``), a task, a task type and prompt type, a task type, or a prompt type (``query``,
``document``). The first that exists is used, in this order (mteb's `get_prompt_name`); texts
without a prompt type may also have the prompt ``default``. In a prompt, ``{instruction}`` is
replaced by mteb's instruction for the task.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from layerwise.errors import LayerwiseError
from layerwise.models.source import Location, locate
from layerwise.tasks.names import DEFAULT, INSTRUCTION, PROMPT_TYPES

if TYPE_CHECKING:
    from layerwise.config.models import Model
    from layerwise.tasks.task import Task

SETTINGS = "config_sentence_transformers.json"
MODULES = "modules.json"


@dataclass(frozen=True)
class Prompts:
    """The prompts of a model.

    Attributes
    ----------
    by_name : mapping
    include_prompt : bool
        True if their tokens count in the pooling.
    """

    by_name: Mapping[str, str] = field(default_factory=dict)
    include_prompt: bool = True

    def of(self, name: str, task: Task, prompt_type: str) -> str:
        """The prompt in front of a task's texts of a prompt type; empty for none.

        Parameters
        ----------
        name : str
            The task's name.
        prompt_type : {'', 'query', 'document'}
        """
        if not self.by_name:
            return ""
        from mteb.models.abs_encoder import get_prompt_name
        from mteb.types import PromptType

        about: Any = SimpleNamespace(name=name, type=task.task_type)
        kind = PromptType(prompt_type) if prompt_type else None
        found = get_prompt_name(dict(self.by_name), about, kind)
        if found is None and not prompt_type:
            found = DEFAULT
        prompt = self.by_name.get(found or "", "")
        if INSTRUCTION not in prompt:
            return prompt
        instruction = task.instruction(prompt_type)
        return instruction and prompt.replace(INSTRUCTION, instruction)


def of_model(model: Model, revision: str) -> Prompts:
    """The prompts that a model's entry in the config asks for.

    Raises
    ------
    LayerwiseError
        If it asks for the saved ones and there are none, or they cannot be had.
    """
    if model.prompts is None:
        return Prompts()
    if isinstance(model.prompts, dict):
        return Prompts(model.prompts, model.include_prompt is not False)
    return saved(locate(model.source, revision), model.include_prompt)


def saved(location: Location, include_prompt: bool | None = None) -> Prompts:
    """The prompts that sentence-transformers has saved with a model.

    Parameters
    ----------
    include_prompt : bool, optional
        Whether their tokens count, if not as saved.

    Raises
    ------
    LayerwiseError
        If there are none, or the hub cannot be asked.
    """
    settings = _read(location, SETTINGS) or {}
    given = {name: text or "" for name, text in (settings.get("prompts") or {}).items()}
    if not any(given.values()):
        raise LayerwiseError(
            f"prompts: {location.name} has no saved prompts in a {SETTINGS}; fetch the model "
            "again, or write the prompts into the config.",
            code="missing_file",
        )
    usual = settings.get("default_prompt_name")
    # sentence-transformers has an empty prompt for queries and documents where none is saved.
    by_name = {**dict.fromkeys(PROMPT_TYPES, ""), **given}
    by_name.pop(DEFAULT, None)
    if usual is not None:
        by_name[DEFAULT] = given[usual]
    if include_prompt is None:
        include_prompt = _include_prompt(location)
    return Prompts(by_name, include_prompt)


def normalizes(model: Model, revision: str) -> bool:
    """True if a sentence-transformers folder scales the model's embeddings to unit length."""
    modules = _read(locate(model.source, revision), MODULES) or []
    return any(module["type"].rpartition(".")[2] == "Normalize" for module in modules)


def _include_prompt(location: Location) -> bool:
    """True unless the folder's Pooling module leaves the tokens of prompts out."""
    for module in _read(location, MODULES) or []:
        if module["type"].rpartition(".")[2] == "Pooling":
            pooling = _read(location, f"{module['path']}/config.json")
            if pooling is None:
                raise LayerwiseError(
                    f"{location.name} has no {module['path']}/config.json, which says whether the "
                    "tokens of prompts count; fetch the model again, or set include_prompt.",
                    code="missing_file",
                )
            return bool(pooling.get("include_prompt", True))
    return True


def _read(location: Location, name: str) -> Any:
    """A JSON file of a model, from its folder, the cache or the hub; None if there is none."""
    from transformers.utils import cached_file

    found = cached_file(
        location.name,
        name,
        revision=location.revision,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    if found is None:
        return None
    try:
        return json.loads(Path(found).read_text(encoding="utf-8"))
    except ValueError as error:
        raise LayerwiseError(
            f"{found} is not JSON ({error}); fetch or copy it again.", code="unreadable"
        ) from error
