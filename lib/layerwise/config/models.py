"""The section ``models``: models and their checkpoints."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import operator
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    Tag,
    TypeAdapter,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import CoreSchema

from layerwise import addons
from layerwise.section import Count, Distinct, Name, Pattern, Positive, Section, SomeOf, one_of
from layerwise.vocabulary import Dtype, Pooling, ScoredReadout, Tokens

# Checkpoints

LOG = 20
"""Checkpoints of ``log``, about evenly on a log scale."""

# Pythia's branches (Biderman et al. 2023, arXiv 2304.01373): step0, powers of two up to step512,
# then every thousandth step up to step143000.
_EARLY = (0, *(2**k for k in range(10)))
PYTHIA: dict[str, tuple[str, ...]] = {
    "all": tuple(f"step{n}" for n in (*_EARLY, *range(1000, 143_001, 1000))),
    "log": tuple(f"step{n}" for n in (*_EARLY, *(1000 * 2**k for k in range(8)), 143_000)),
}


def _with_step(pattern: str) -> str:
    """Refuse a pattern without one {step}."""
    if pattern.count("{step}") != 1:
        raise ValueError(
            f"{pattern!r} needs {{step}} once, in place of the number that orders the branches, "
            "such as 'stage1-step{step}-tokens*'"
        )
    return pattern


class Branches(Section):
    """Branches of a repository on the hub."""

    pattern: Annotated[str, AfterValidator(_with_step)]
    """Names of the branches: {step} stands for the number that orders them, * for anything."""
    which: Literal["all", "log"] = "log"
    """All of them, or about 20, evenly on a log scale."""


def matching(branches: Branches, names: Sequence[str]) -> tuple[str, ...]:
    """Branches that match, in order of their number.

    Examples
    --------
    >>> names = ["main", "step-2000", "step-1000", "step-1000-extra"]
    >>> matching(Branches(pattern="step-{step}", which="all"), names)
    ('step-1000', 'step-2000')

    Raises
    ------
    ValueError
        If none matches.
    """
    before, after = (
        re.escape(text).replace(r"\*", ".*") for text in branches.pattern.split("{step}")
    )
    pattern = re.compile(rf"{before}(\d+){after}")
    steps = {name: int(match[1]) for name in names if (match := pattern.fullmatch(name))}
    if not steps:
        some = ", ".join(sorted(names)[:3]) or "none"
        raise ValueError(f"no branch matches {branches.pattern!r}; there are {some}")
    matches = sorted(steps, key=lambda name: (steps[name], name))
    if branches.which == "all" or len(set(steps.values())) <= LOG:
        return tuple(matches)
    # Steps are shifted by one so that step 0 has a logarithm.
    logs = [math.log1p(steps[name]) for name in matches]
    # Where steps are equally spaced, several early points have the same nearest checkpoint, so
    # that more points are needed for as many checkpoints.
    selected: tuple[str, ...] = ()
    for n_points in itertools.count(LOG):
        width = (logs[-1] - logs[0]) / (n_points - 1)
        nearest = dict.fromkeys(_nearest(logs, logs[0] + width * k) for k in range(n_points))
        if len(nearest) > LOG:
            break
        selected = tuple(matches[n] for n in nearest)
    return selected


def _nearest(numbers: Sequence[float], number: float) -> int:
    """Place of the nearest of some ascending numbers."""
    after = bisect.bisect_left(numbers, number, 1, len(numbers) - 1)
    return min(after - 1, after, key=lambda n: abs(numbers[n] - number))


def branches_of(hub: str) -> list[str]:
    """Names of a repository's branches: the hub's, or offline those in the local cache.

    Raises
    ------
    ValueError
        If there are none, or the hub does not answer.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.file_download import repo_folder_name

    if not constants.is_offline_mode():
        try:
            return [branch.name for branch in HfApi().list_repo_refs(hub).branches]
        except Exception as error:  # of the client and of the HTTP library below it
            raise ValueError(
                f"the hub lists no branches of {hub} ({error}); list the revisions by name"
            ) from error
    folder = repo_folder_name(repo_id=hub, repo_type="model")
    refs = Path(constants.HF_HUB_CACHE) / folder / "refs"
    names = [path.relative_to(refs).as_posix() for path in refs.rglob("*") if path.is_file()]
    if not names:
        raise ValueError(f"the local cache has no branch of {hub}; list the revisions by name")
    return names


def pythia_checkpoints(shorthand: str, hub: str) -> tuple[str, ...]:
    """The checkpoints of ``all`` (154) or ``log`` (20, evenly on a log scale) of a Pythia model.

    Parameters
    ----------
    shorthand : {'all', 'log'}
    hub : str
        The model's name on the hub; empty for a model from elsewhere.

    Raises
    ------
    ValueError
        If there is no such shorthand, or the model is not one of Pythia's.
    """
    if shorthand not in PYTHIA:
        choices = ", ".join(map(repr, PYTHIA))
        raise ValueError(f"expected a list of revisions or one of {choices}, got {shorthand!r}")
    if not hub.lower().startswith("eleutherai/pythia"):
        raise ValueError(
            f"{shorthand!r} alone is for EleutherAI/pythia-…; list the revisions, or give the "
            "pattern of the branches: {pattern: 'step{step}', which: " + shorthand + "}"
        )
    return PYTHIA[shorthand]


# Models


class Pickled(Section):
    """Weights that PyTorch pickled, and what such an old folder lacks."""

    file: str = Field("pytorch_model.bin", min_length=1)
    """Name of the file in the folder. Only tensors are read from it, so no code of it runs."""
    model_type: str | None = None
    """transformers' name of the architecture, where config.json lacks it."""
    vocabulary: str | None = None
    """Path of a vocabulary in the folder, a token a line, for models without a tokenizer of
    transformers."""
    token: Pattern = "."
    """With vocabulary: a regular expression of a token of the text."""


class _Files(Section):
    """The files of a model."""

    gguf_file: str | None = None
    """Name of the GGUF file in the repository or folder."""


class _LocalFiles(_Files):
    """The files of a model on this machine."""

    pickled: Pickled | None = None
    """Read the weights from a file that PyTorch pickled; they are saved as safetensors once."""


class HubSource(_Files):
    """A model on the Hugging Face hub."""

    hub: str = Field(min_length=1)
    """Name on the Hugging Face hub. Revisions are its branches and tags."""


class FolderSource(_LocalFiles):
    """A model in a local folder."""

    folder: str = Field(min_length=1)
    """Path of a Hugging Face folder; {revision} in it is replaced by the revision."""


class PackageSource(_LocalFiles):
    """A model in an installed Python package."""

    package: str = Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")
    """Name of an installed Python package with the model."""
    path: str = "."
    """Folder in the package."""


class StatesSource(Section):
    """Hidden states that another program computed."""

    states: str = Field(min_length=1)
    """Path of an HDF5 or safetensors file of states; {revision} in it is replaced by the
    revision."""


class HubAdapter(Section):
    """An adapter on the Hugging Face hub."""

    hub: str = Field(min_length=1)
    """Name on the Hugging Face hub."""
    revision: str = Field("main", min_length=1)
    """Branch, tag or commit."""


class FolderAdapter(Section):
    """An adapter in a local folder."""

    folder: str = Field(min_length=1)
    """Path of the adapter's folder."""


def is_converted(source: Section) -> bool:
    """True if the workflow saves a source's weights as safetensors before it loads them."""
    return any(getattr(source, key, None) for key in ("gguf_file", "pickled"))


Source = Annotated[
    Annotated[HubSource, Tag("{hub}")]
    | Annotated[FolderSource, Tag("{folder}")]
    | Annotated[PackageSource, Tag("{package}")]
    | Annotated[StatesSource, Tag("{states}")],
    one_of("hub", "folder", "package", "states"),
]
"""The source of a model."""

Adapter = Annotated[
    Annotated[HubAdapter, Tag("{hub}")] | Annotated[FolderAdapter, Tag("{folder}")],
    one_of("hub", "folder"),
]
"""The source of an adapter."""

_Named: Any = SomeOf[Name] | Literal[tuple(PYTHIA)]
_SCHEMAS = [TypeAdapter(_Named).json_schema(), Branches.model_json_schema()]
Revisions = Annotated[SomeOf[Name], WithJsonSchema({"anyOf": _SCHEMAS})]


class Ablation(Section):
    """Parts of a block that are not added to the residual stream."""

    layer: int = Field(ge=1)
    """Number of the block, from 1."""
    part: Literal["mixer", "mlp"]
    """The part of the block: attention (or the state-space mixer), or the MLP."""
    token: Literal["first", "all"] = "first"
    """The tokens for which its output is set to zero."""


class _OfAnyMedium:
    """The union of the `preprocess` sections of media, known when a config is read."""

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        kinds = [medium.preprocess for medium in addons.media() if medium.preprocess]
        return handler.generate_schema(functools.reduce(operator.or_, kinds, None))


_Preprocess = Annotated[Any, _OfAnyMedium]


class Model(Section):
    """A model and its checkpoints."""

    model_config = ConfigDict(defer_build=True)

    source: Source
    """Source of the model: one of hub, folder, package, states."""
    revisions: Revisions = ("main",)
    """The checkpoints, in order of training. Of a model on the hub also the branches that match a
    pattern: {pattern: 'stage1-step{step}-tokens*', which: log}. For EleutherAI/pythia-… also 'all'
    (154) or 'log' (20, evenly on a log scale)."""
    max_length: Positive | None = None
    """Maximum length of a prompt in tokens; null for the model's limit."""
    special_tokens: bool = True
    """Add the tokenizer's special tokens (BOS, CLS, SEP)."""
    trust_remote_code: bool = False
    """Allow code that comes with the model to run."""
    device_map: Literal["auto"] | None = None
    """auto spreads a model that is larger than one GPU over all that are visible."""
    bidirectional: bool = False
    """Let a decoder's tokens attend to later ones, as in LLM2Vec."""
    ablate: Distinct[Ablation] = ()
    """Parts of blocks whose output is set to zero in every pass, for a causal test."""
    drop_dimensions: Distinct[Count] = ()
    """Dimensions of the states, such as massive ones, that metrics and scores read as zero. The
    model itself runs with them."""
    stream: Literal["mean"] | Count = "mean"
    """Layers of a model with several residual streams (hyper-connections, AltUp): the mean of the
    streams, or one of them by its number from 0. The readout final_norm reads all streams."""
    adapters: Distinct[Adapter] = ()
    """LoRA adapters (PEFT, safetensors), merged into the weights one after another."""
    dtype: Dtype | None = None
    """Type that the model computes in; null for extract.dtype."""
    batch_tokens: Positive | None = None
    """Tokens in a batch, padding included; null for extract.batch_tokens."""
    tokens: SomeOf[Tokens] | None = None
    """Token selections of this model; null for extract.tokens."""
    poolings: SomeOf[Pooling] | None = None
    """Poolings of this model; null for scoring.poolings."""
    readouts: SomeOf[ScoredReadout] | None = None
    """Readouts of this model; null for scoring.readouts."""
    prompts: Literal["saved"] | dict[str, str] | None = None
    """Prompts in front of a task's texts, by mteb's names: of a task and prompt type
    (STS12-query), a task, a task type and prompt type (Reranking-query), a task type, or a prompt
    type (query, document); the first of these that is given applies. `default` is for texts
    without a prompt type. {instruction} becomes mteb's instruction for the task. null: those in
    config_sentence_transformers.json, if any; saved: the same, and it is an error if there are
    none; {}: no prompts. Corpora get no prompts."""
    include_prompt: bool | None = None
    """Include the tokens of prompts in the pooling; null for the model's own setting with saved
    prompts, and true otherwise."""

    preprocess: _Preprocess = None
    """Settings of the model's processor, of a medium other than text; null for its
    preprocessor_config.json."""

    @field_validator("revisions", mode="before")
    @classmethod
    def _expanded(cls, value: Any, info: ValidationInfo) -> Any:
        source = info.data.get("source")
        hub = source.hub if isinstance(source, HubSource) else ""
        if isinstance(value, str):
            return pythia_checkpoints(value, hub)
        if not isinstance(value, dict):
            return value
        branches = Branches.model_validate(value)
        if not hub:
            raise ValueError("a pattern of branches is for models on the hub; list the revisions")
        return matching(branches, branches_of(hub))
