"""What a model is given in front of a text: its prompts, and which of them mteb would take.

A model's prompts are by name, as sentence-transformers and mteb have them. For a text of a task,
mteb takes the first that there is of task and prompt type (``STS12-query``), task (``STS12``),
task type and prompt type (``Reranking-query``), task type (``Reranking``), and prompt type
(``query``); see ``get_prompt_name`` in ``mteb.models.abs_encoder``. A text that has no prompt type
(all but those of reranking tasks, nearly) and none of these has sentence-transformers' own default
prompt: here the name `DEFAULT`. In a prompt, `INSTRUCTION` stands for mteb's own instruction for
the task, as for its models of the class ``InstructSentenceTransformerModel``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerwise.activations.words import Word
from layerwise.errors import LayerwiseError
from layerwise.files import sha256_text
from layerwise.models.source import Location, locate
from layerwise.tasks.names import DEFAULT, INSTRUCTION, PROMPT_TYPES

if TYPE_CHECKING:
    from layerwise.config.models import Model
    from layerwise.tasks.texts import TaskTexts

SETTINGS = "config_sentence_transformers.json"
MODULES = "modules.json"
SAVED = "saved"


@dataclass(frozen=True)
class Prompts:
    """The prompts of a model.

    Attributes
    ----------
    by_name : mapping
    include_prompt : bool
        Whether their tokens count in the pooling.
    """

    by_name: Mapping[str, str] = field(default_factory=dict)
    include_prompt: bool = True

    def of(self, asked: TaskTexts) -> dict[str, str]:
        """The prompt in front of a task's texts, by prompt type; without those that are empty."""
        found = {}
        for prompt_type in dict.fromkeys(asked.prompt_types):
            prompt = next(
                (
                    self.by_name[name]
                    for name in names(asked.task, asked.task_type, prompt_type)
                    if name in self.by_name
                ),
                "",
            )
            if INSTRUCTION in prompt:
                instruction = asked.instructions.get(prompt_type, "")
                prompt = instruction and prompt.replace(INSTRUCTION, instruction)
            if prompt:
                found[prompt_type] = prompt
        return found


def names(task: str, task_type: str, prompt_type: str = "") -> list[str]:
    """The names under which mteb looks for the prompt of a text, in its order.

    Parameters
    ----------
    task, task_type : str
    prompt_type : {'', 'query', 'document'}
    """
    if not prompt_type:
        return [task, task_type, DEFAULT]
    return [
        f"{task}-{prompt_type}", task, f"{task_type}-{prompt_type}", task_type, prompt_type,
    ]  # fmt: skip


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
            f"prompts: {SAVED} came, but {location.name} has no prompts in a {SETTINGS}; write "
            "them into the config, by name, or leave `prompts` out."
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


def _include_prompt(location: Location) -> bool:
    """What the folder's Pooling module says; true where it says nothing."""
    for module in _read(location, MODULES) or []:
        if module["type"].rpartition(".")[2] == "Pooling":
            name = f"{module['path']}/config.json"
            pooling = _read(location, name)
            if pooling is None:
                raise LayerwiseError(
                    f"{location.name} has no {name}, which says whether the tokens of its "
                    "prompts count; fetch the model again, or set include_prompt in its entry."
                )
            return bool(pooling.get("include_prompt", True))
    return True


def _read(location: Location, name: str) -> Any:
    """A JSON file of a model's, from its folder, the cache or the hub; None if it has none."""
    found = _of_hub(location, name) if location.folder is None else location.folder / name
    if found is None or not found.is_file():
        return None
    try:
        return json.loads(found.read_text(encoding="utf-8"))
    except ValueError as error:
        raise LayerwiseError(f"{found} is no JSON ({error}); mend or fetch it again.") from error


def _of_hub(location: Location, name: str) -> Path | None:
    """A file of a model on the hub; None if the hub says, or said, that there is none."""
    from huggingface_hub import _CACHED_NO_EXIST, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    from layerwise.models import failures

    try:
        return Path(hf_hub_download(location.name, name, revision=location.revision))
    except Exception as error:
        # Not the same: one is told by the hub, the other that the hub cannot be asked.
        if isinstance(error, EntryNotFoundError) and not isinstance(
            error, LocalEntryNotFoundError
        ):
            return None
        known = try_to_load_from_cache(location.name, name, revision=location.revision)
        if known is _CACHED_NO_EXIST:
            return None
        raise LayerwiseError(
            f"The {name} of {location.name} cannot be had: {failures.why(error, location)}"
        ) from error


def key_of(prompt: str, text: str | Word) -> str:
    """What a text behind a prompt is known by: a hash, of the text alone where there is none; a
    word by its sentence and its place in it."""
    if isinstance(text, Word):
        return sha256_text(json.dumps([prompt, *text]))
    return sha256_text(json.dumps([prompt, text]) if prompt else text)


def pairs(asked: TaskTexts, before: Mapping[str, str]) -> dict[str, tuple[str, Any]]:
    """The distinct pairs of prompt and text of a task by key, in the order of first use.

    Parameters
    ----------
    before : mapping from prompt type to prompt, as `Prompts.of` gives it
    """
    found: dict[str, tuple[str, Any]] = {}
    for prompt_type, text in zip(asked.prompt_types, asked.texts, strict=True):
        prompt = before.get(prompt_type, "")
        found.setdefault(key_of(prompt, text), (prompt, text))
    return found
