"""Source of a model: where it is, its identity for keys, and why it cannot be read.

A model on the hub is identified by its name and revision. A local model is identified by the
SHA-256 of its files, which notices a change of a single weight. Hashes are cached (a gigabyte
takes about a second).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from layerwise.config.models import (
    FolderAdapter,
    FolderSource,
    HubAdapter,
    HubSource,
    Model,
    PackageSource,
    StatesSource,
)
from layerwise.errors import LayerwiseError, causes
from layerwise.io.files import (
    cached_sha256,
    disk_fault,
    is_file,
    is_folder,
    memory_fault,
    sha256_text,
    visible_files,
)
from layerwise.project import package_folder, require
from layerwise.section import parse

TIMEOUT_S = 10.0

# Endings of files of states.
STATES = (".h5", ".hdf5", ".safetensors")

# Files in a model's folder that nothing reads.
PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl"}
EXPORTS = {".h5", ".msgpack", ".ot", ".onnx", ".tflite"}
NOTES = {".lock", ".md", ".log"}
ADAPTER = "adapter_config.json"
UNREAD = PICKLES | EXPORTS | NOTES

# Types of exceptions or words in their texts, and what they mean; the first that fits.
_ROWS = yaml.safe_load(files(__package__).joinpath("remedies.yaml").read_text(encoding="utf-8"))
SIGNS: dict[str, str] = {sign: row["remedy"] for row in _ROWS for sign in row["signs"]}
OFFLINE, NO_TOKENIZER = SIGNS["OfflineModeIsEnabled"], SIGNS["instantiate the backend tokenizer"]

AnySource = HubSource | FolderSource | PackageSource | StatesSource | HubAdapter | FolderAdapter


@dataclass(frozen=True)
class Location:
    """Location of a model: hub name, folder or file of states; revision; GGUF file."""

    name: str
    revision: str | None
    gguf_file: str | None = None

    @property
    def folder(self) -> Path | None:
        """The folder of a local model, or the file of states."""
        return Path(self.name) if self.revision is None else None

    def options(self) -> dict[str, Any]:
        """Arguments of `from_pretrained` in addition to the name.

        Without a network we read only the cache, since huggingface_hub would try each file for
        half a minute.
        """
        options: dict[str, Any] = {}
        if self.folder is None:
            options |= {"revision": self.revision, "local_files_only": not hub_answers()}
        if self.gguf_file is not None:
            require("gguf", "gguf")
            options["gguf_file"] = self.gguf_file
        return options


def quiet() -> None:
    """Show only errors of transformers, and no progress bars."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


@cache
def hub_answers() -> bool:
    """True if the hub can be reached; asked once."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=TIMEOUT_S)
    except Exception:  # offline mode, no network, a proxy's refusal
        return False
    return True


def locate(source: AnySource, revision: str = "main") -> Location:
    """Resolve the source of a model or an adapter at a revision.

    Parameters
    ----------
    source : a model's source or an adapter, as `layerwise.config.models` has them
    revision : str
        The model's revision. An adapter on the hub has its own.

    Raises
    ------
    LayerwiseError
        If the package is not installed, the folder or file does not exist, or a hub name is also
        a local folder.
    """
    if isinstance(source, HubSource | HubAdapter):
        # transformers would read the folder, and a change in it would go unnoticed.
        if is_folder(source.hub):
            raise LayerwiseError(
                f"hub: {source.hub!r} came, but there is a folder of that name here; write "
                f"folder: {source.hub!r} for it, or move it away for the model on the hub.",
                code="ambiguous",
            )
        at = getattr(source, "commit", getattr(source, "revision", revision))
        return Location(source.hub, at, getattr(source, "gguf_file", None))
    if isinstance(source, PackageSource):
        path = package_folder(source.package) / source.path
    else:
        pattern = source.states if isinstance(source, StatesSource) else source.folder
        path = Path(pattern.replace("{revision}", revision))
    if not (is_file(path) if isinstance(source, StatesSource) else is_folder(path)):
        what = "file of states" if isinstance(source, StatesSource) else "model folder"
        raise LayerwiseError(
            f"There is no {what} {path}; check the model's source in the config.",
            code="missing_file",
        )
    gguf = getattr(source, "gguf_file", None)
    listed = sorted(p.name for p in path.glob("*.gguf"))
    if gguf and not is_file(path / gguf):
        raise LayerwiseError(
            f"There is no GGUF file {gguf!r} in {path}; it holds {listed}.", code="missing_file"
        )
    if listed and not gguf and not is_file(path / "config.json"):
        raise LayerwiseError(
            f"{path} has GGUF files and no config.json; name one: {path}#{listed[0]} for a "
            f"command, or gguf_file: {listed[0]} in the config.",
            code="missing_file",
        )
    return Location(str(path), None, gguf)


def named(text: str) -> HubSource | FolderSource | PackageSource | StatesSource:
    """Parse a model on the command line.

    Parameters
    ----------
    text : str
        An existing folder, ``package:NAME`` or ``package:NAME/path``, a file of states, or a name
        on the hub. The name of a GGUF file may follow after a ``#``.

    Raises
    ------
    LayerwiseError
        If it is none of these.
    """
    where, _, file = text.partition("#")
    gguf = file or None
    if where.startswith("package:"):
        package, _, path = where.removeprefix("package:").partition("/")
        settings = {"package": package, "path": path or ".", "gguf_file": gguf}
        return parse(PackageSource, settings)
    if is_file(where) and Path(where).suffix in STATES:
        return StatesSource(states=where)
    if where and is_folder(where):
        return FolderSource(folder=where, gguf_file=gguf)
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", where) and not where.startswith("."):
        return HubSource(hub=where, gguf_file=gguf)
    raise LayerwiseError(
        f"Model {text!r}: expected an existing folder, package:NAME[/path] or a name on the hub "
        "(owner/name).",
        code="missing_file",
    )


def why(error: BaseException, location: Location) -> str:
    """One sentence: the problem and how to fix it.

    We use the types of the exceptions in the chain of causes where we can. transformers raises
    OSError for most problems, with texts that change.
    """
    text = " ".join(str(error).split())
    about = {"name": location.name, "revision": location.revision, "text": text[:300]}
    if memory_fault(error):
        return (
            "it does not fit into memory; set dtype: bfloat16 for it, take a larger machine or "
            "GPU, or spread it over several GPUs by device_map: auto."
        )
    if fault := disk_fault(error):
        return (
            f"its files cannot be read or written: {fault}; free space, fix the folder's "
            "permissions, or set HF_HOME to a folder that can be written."
        )
    kinds = {kind.__name__ for link in causes(error) for kind in type(link).__mro__}
    for sign, meaning in SIGNS.items():
        if sign in kinds or sign in text:
            return meaning.format(**about)
    if location.folder is None and not hub_answers():
        return OFFLINE.format(**about)
    check = "check config.json and the tokenizer's files, or fetch or copy it again"
    if location.gguf_file:
        check = "it may be cut short, or one of several parts; fetch or copy it again"
    return (
        f"transformers cannot read {location.gguf_file or 'its files'} ({type(error).__name__}: "
        f"{text}); {check}."
    )


def identity(entry: Model, revision: str = "main") -> str:
    """Identify a model with its adapters.

    Settings other than the source (dtype, bidirectional attention, …) are not included. Do not
    call this for a model that the workflow trains: its identity is the key of its training.

    Parameters
    ----------
    entry : Model
        The model's entry in the config. `entry.source` may name a GGUF file; only that file
        counts then.
    revision : str
        One of its checkpoints.

    Returns
    -------
    str
        SHA-256, hexadecimal.

    Raises
    ------
    LayerwiseError
        If a local folder, package or file is missing.
    """
    return sha256_text(
        _identity(entry.source, revision), *(_identity(a, "main") for a in entry.adapters)
    )


def folder_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of each file in a model's folder by its relative path, `UNREAD` ones left out."""
    next(folder.iterdir(), None)  # rglob silently skips folders that it may not read
    paths = [path for path in visible_files(folder) if path.suffix not in UNREAD]
    return {path.relative_to(folder).as_posix(): cached_sha256(path) for path in paths}


def adapter_alone(name: str) -> LayerwiseError:
    """The error for an adapter in place of a model: transformers would read the base it names."""
    return LayerwiseError(
        f"{name} is an adapter, not a model; name the model that it was made from as the source, "
        "and this one under adapters, or give the loaded model in Python. If the weights beside "
        f"{ADAPTER} are merged, remove that file.",
        code="conflict",
    )


def _identity(source: AnySource, revision: str) -> str:
    gguf = getattr(source, "gguf_file", None)
    if isinstance(source, HubAdapter | HubSource):
        return sha256_text("hub", source.hub, getattr(source, "revision", revision), gguf or "")
    path = Path(locate(source, revision).name)
    if isinstance(source, StatesSource):
        return sha256_text("states", cached_sha256(path))
    if gguf:
        return sha256_text("gguf", cached_sha256(path / gguf))
    if pickled := getattr(source, "pickled", None):
        names = filter(None, (pickled.file, "config.json", pickled.vocabulary))
        hashes = [cached_sha256(path / name) for name in names]
        return sha256_text("pickled", pickled.model_dump_json(), *hashes)
    card = ADAPTER if isinstance(source, FolderAdapter) else "config.json"
    if card != ADAPTER and is_file(path / ADAPTER):
        raise adapter_alone(str(path))
    if not is_file(path / card) and not is_file(path / "modules.json"):
        raise LayerwiseError(
            f"{path} holds no model: it has no {card}; name the folder that has it.",
            code="missing_file",
        )
    return sha256_text("folder", *chain(*folder_hashes(path).items()))
