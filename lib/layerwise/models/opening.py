"""Open a model, whatever it is given as: a name, a folder, a config's entry, or in memory."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn
from transformers import MODEL_MAPPING, PreTrainedConfig

from layerwise.config.models import Model, StatesSource
from layerwise.errors import LayerwiseError
from layerwise.models import devices, saved
from layerwise.models.architectures import settle, unsupported
from layerwise.models.load import LoadedModel, body, load, prepare
from layerwise.models.source import STATES, locate, named, quiet
from layerwise.models.states import States
from layerwise.models.texts import Texts, reader_of
from layerwise.section import parse


@contextmanager
def open_model(
    what: Any,
    reader: Any = None,
    *,
    name: str = "",
    revision: str = "main",
    device: str = "auto",
    dtype: str = "float32",
    max_length: int | None = None,
) -> Iterator[LoadedModel]:
    """Open a model; one in memory is left as it was.

    Parameters
    ----------
    what : str, Path, Model, States, PreTrainedModel or SentenceTransformer
        A folder, a hub name or ``package:NAME/path``, each with ``#file`` for a GGUF file in it;
        an entry of a config; states (`States`, or a file of them); or a model of transformers or
        sentence-transformers in memory. Of that we read the model below a head, the encoder of an
        encoder-decoder, and the image tower of a model of images and texts.
    reader : optional
        Tokenizer, image processor or feature extractor of a model in memory; by default the one
        of the folder or hub name that it came from.
    name : str
        Name for tables and messages; by default the last part of `what`, or the class.
    revision : str
        Branch, tag or commit, or a checkpoint of the entry.
    device, dtype : str
        As for `layerwise.models.load.load`; a model in memory has its own.
    max_length : int, optional
        The longest prompt in tokens, where `what` is no entry; by default the model's limit.

    Raises
    ------
    LayerwiseError
        If there is no such model, or its layers cannot be read.
    """
    settings: dict[str, Any] = {"source": None, "max_length": max_length}
    if isinstance(what, Model):
        entry = what
    elif isinstance(what, str | Path):
        source = named(str(what))
        entry = parse(Model, settings | {"source": source.plain()})
        name = name or getattr(source, "package", "") or str(what).rstrip("/").rpartition("/")[2]
    else:
        entry = Model.model_construct(**settings)
        while isinstance(what, nn.DataParallel | nn.parallel.DistributedDataParallel):
            what = what.module
    if isinstance(entry.source, StatesSource):
        what = States.read(Path(locate(entry.source, revision).name))
    if isinstance(what, States):
        yield _given(what, name, entry, revision)
    elif entry.source is not None:
        yield load(name, entry, revision, device=device, dtype=dtype)
    else:
        with unchanged(what) as network:
            yield _live(network, what, reader, name, entry)


def depth_of(model: str, revision: str) -> int | None:
    """Number of blocks of a model that is not loaded; None where it cannot be read."""
    location = locate(named(model), revision)
    if location.gguf_file or location.name.endswith(STATES):
        return None
    try:
        config, _ = PreTrainedConfig.get_config_dict(location.name, **location.options())
    except (OSError, ValueError):  # loading says why
        return None
    depth = config.get("num_hidden_layers")
    return depth if isinstance(depth, int) else None


def _given(states: States, name: str, entry: Model, revision: str) -> LoadedModel:
    """Prepare states, which take the place of a model."""
    loaded = LoadedModel(
        name or states.name,
        revision,
        nn.Identity(),
        states,
        states.anatomy(),
        dtype="float32",
        weights=states.sha256(),
        claim=devices.Claim(states.device),
        entry=entry,
    )
    for setting in ("ablate", "max_length"):
        if getattr(entry, setting):
            loaded.require_model(setting)
    return loaded


def _live(network: Any, model: Any, reader: Any, name: str, entry: Model) -> LoadedModel:
    """Prepare a network, which is part of a model in memory."""
    quiet()
    origin = str(network.config.name_or_path or "")
    name = name or origin.rstrip("/").rpartition("/")[2] or type(network).__name__
    embedder = saved.Embedder()
    is_saved = hasattr(model, "transformers_model")  # of sentence-transformers
    if is_saved:
        saved.transformer_of(model, name)
        embedder = saved.embedder_of(model, name)
    try:
        if is_saved and reader_of(network.config) is Texts:
            reader = saved.text_module(model, reader)
        elif reader is None:
            reader = reader_of(network.config).open_processor(origin, None)
        else:
            reader = copy.deepcopy(reader)
    except Exception as error:  # the hub, files and models fail in many ways
        what = reader_of(network.config).processor_name
        raise LayerwiseError(
            f"{name} comes without {what}; give it as tokenizer=.", code="missing_file"
        ) from error
    return prepare(
        name,
        network.eval(),
        reader,
        entry,
        revision="live",
        dtype=str(network.dtype).removeprefix("torch."),
        weights="",
        claim=devices.Claim(network.device),
        embedder=embedder,
    )


@contextmanager
def unchanged(model: Any) -> Iterator[Any]:
    """Give the part of a model in memory that is read; leave it as it was, also after an error.

    Modules and configurations get their attributes back (modes, hooks, buffers, parts), since
    some models change them in a pass. Weights are not copied: no pass changes them, and what
    `settle` does to them is exact and undone.

    Raises
    ------
    LayerwiseError
        If it is no model of transformers or sentence-transformers.
    """
    network = getattr(model, "transformers_model", None) or model
    if hasattr(network, "peft_config") and hasattr(network, "get_base_model"):
        if any(config.is_prompt_learning for config in network.peft_config.values()):
            raise unsupported(
                f"{type(network).__name__} puts a learned prompt or prefix before its texts"
            )
        network = network.get_base_model()
    if not isinstance(getattr(network, "config", None), PreTrainedConfig):
        first = next(network.children(), network) if isinstance(network, nn.Module) else network
        raise LayerwiseError(
            f"model: expected a model of transformers or sentence-transformers that has layers, a "
            f"folder or a name on the hub, got {type(first).__name__}.",
            code="wrong_type",
        )
    network = body(_below_head(network))
    before = [(owner, _contents(vars(owner))) for owner in _owners(network)]
    undo = settle(network)
    try:
        yield network
    finally:
        undo()
        for owner, contents in before:
            vars(owner).clear()
            for key, (value, inside) in contents.items():
                if inside is not None:
                    value.clear()
                    value.update(inside)
                vars(owner)[key] = value


def _below_head(network: Any) -> Any:
    """The model below a head; the model itself if it has none."""
    bodies = MODEL_MAPPING.get(type(network.config), ())
    # The base_model of DINOv3, which has no head, is its encoder.
    return network if isinstance(network, bodies) else getattr(network, "base_model", network)


def _contents(attributes: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Attributes with a copy of what they hold where they are dicts or sets."""
    return {
        key: (value, copy.copy(value) if isinstance(value, dict | set) else None)
        for key, value in attributes.items()
    }


def _owners(network: nn.Module) -> list[Any]:
    """The modules of a network, and the configurations that they and each other have."""
    owners: dict[int, Any] = {id(module): module for module in network.modules()}
    waiting = list(owners.values())
    while waiting:
        for value in vars(waiting.pop()).values():
            if isinstance(value, PreTrainedConfig) and id(value) not in owners:
                owners[id(value)] = value
                waiting.append(value)
    return list(owners.values())
