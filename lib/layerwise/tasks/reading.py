"""A model as tasks read it: its prompts, and the reader of tasks that score embeddings.

A model's prompts are by name, as in sentence-transformers and mteb: of a task and prompt type
(``STS12-query``), a task, a task type and prompt type, a task type, or a prompt type (``query``,
``document``). The first that exists is used, in this order (mteb's `get_prompt_name`); texts
without a prompt type may also have the prompt ``default``. In a prompt, ``{instruction}`` is
replaced by mteb's instruction for the task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from layerwise.errors import LayerwiseError
from layerwise.models import saved
from layerwise.models.source import locate
from layerwise.tasks.names import DEFAULT, INSTRUCTION, PROMPT_TYPES

if TYPE_CHECKING:
    from layerwise.activations.representation import Representation
    from layerwise.config.models import Model
    from layerwise.config.settings import ExtractSettings, ScoringSettings
    from layerwise.models.load import LoadedModel
    from layerwise.tasks.task import Array, Task


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
        If it asks for those that sentence-transformers has saved with the model, and there are
        none.
    """
    if model.prompts is None:
        return Prompts()
    if isinstance(model.prompts, dict):
        return Prompts(model.prompts, model.include_prompt is not False)
    location = locate(model.source, revision)
    settings = saved.read(location, saved.PROMPTS) or {}
    texts = {name: text or "" for name, text in (settings.get("prompts") or {}).items()}
    if not any(texts.values()):
        raise LayerwiseError(
            f"prompts: {location.name} has no saved prompts in a {saved.PROMPTS}; fetch the model "
            "again, or write the prompts into the config.",
            code="missing_file",
        )
    usual = settings.get("default_prompt_name")
    # sentence-transformers has an empty prompt for queries and documents where none is saved.
    by_name = {**dict.fromkeys(PROMPT_TYPES, ""), **texts, DEFAULT: texts.get(usual, "")}
    counts = model.include_prompt
    if counts is None:
        pooling = saved.module(location, "Pooling")
        about = pooling and saved.read(location, f"{pooling['path']}/config.json")
        counts = (about or {}).get("include_prompt", True)
    return Prompts(by_name, counts)


@dataclass(frozen=True)
class Setup:
    """A model with all that decides how it reads the inputs of tasks.

    Attributes
    ----------
    scoring : ScoringSettings
        With `normalize` decided.
    prompts : Prompts
        Prompts in front of inputs.
    """

    loaded: LoadedModel
    extraction: ExtractSettings
    scoring: ScoringSettings
    prompts: Prompts


@dataclass(frozen=True)
class Embedder:
    """Embeds texts, images, recordings or words; see `layerwise.tasks.task.Reader`."""

    def representations(self, setup: Setup) -> list[Representation]:
        """Every selection of tokens with every pooling and readout of the settings."""
        from layerwise.activations import embedding

        scoring = setup.scoring
        return embedding.representations_of(
            setup.loaded, setup.extraction.tokens, scoring.poolings, scoring.readouts
        )

    def width(self, setup: Setup) -> int:
        """The model's hidden size."""
        return setup.loaded.anatomy.hidden

    def read(
        self, setup: Setup, inputs: Sequence[Any], prompts: Sequence[str], into: Array
    ) -> Iterator[int]:
        """Fill an array as `layerwise.activations.embedding.embed_into`."""
        from layerwise.activations import embedding

        return embedding.embed_into(
            setup.loaded,
            inputs,
            into,
            self.representations(setup),
            prompts=prompts,
            include_prompt=setup.prompts.include_prompt,
            budget=setup.extraction.batch_tokens,
            sink_ratio=setup.extraction.sink_ratio,
        )
