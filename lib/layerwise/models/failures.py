"""Messages about models that cannot be loaded or run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from layerwise.io.files import disk_fault
from layerwise.models.source import Location

# Names of tokenizers' files.
TOKENIZER = ("*token*", "vocab*", "*.model", "merges.txt")
NO_TOKENIZER = (
    "has no tokenizer with a vocabulary; put the tokenizer's files (such as tokenizer.json and "
    "tokenizer_config.json) into the folder of the weights."
)


def why(error: BaseException, location: Location) -> str:
    """One sentence: the problem and how to fix it.

    We use the types of the exceptions in the chain of causes. transformers raises OSError for
    most problems, with texts that change.
    """
    kinds = {kind.__name__ for e in _chain(error) for kind in type(e).__mro__}
    text = " ".join(str(error).split())
    name, revision = location.name, location.revision
    for cause in _chain(error):
        if isinstance(cause, OSError) and cause.errno and (fault := disk_fault(cause)):
            where = f" ({cause.filename})" if cause.filename else ""
            return (
                f"its files cannot be read or written{where}: {fault}; free space, fix the "
                "folder's permissions, or set HF_HOME to a folder that can be written."
            )
    if "GatedRepoError" in kinds:
        return (
            f"access to {name} needs a token: accept its terms on its page, then run "
            "`hf auth login` or set HF_TOKEN."
        )
    if "RevisionNotFoundError" in kinds:
        return f"{name} has no branch or tag {revision!r}; see the branches on its page."
    if "RepositoryNotFoundError" in kinds:
        return (
            f"there is no model {name!r} on the hub, or it is private: check the name, or run "
            "`hf auth login` if it is yours."
        )
    if "HFValidationError" in kinds:
        return f"{name!r} cannot be a name on the hub; names are like 'owner/model'."
    if kinds & {"LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectError"} or (
        location.folder is None and not location.reachable()
    ):
        return (
            f"{name} at {revision!r} is not in the cache, and the hub cannot be reached; fetch it "
            f"on a machine with a network (`hf download {name} --revision {revision}`), set "
            "HF_HOME to a cache that has it, or name a folder that holds it."
        )
    return _of_its_files(error, text, kinds, location)


def _of_its_files(error: BaseException, text: str, kinds: set[str], location: Location) -> str:
    name, folder = location.name, location.folder
    if "trust_remote_code" in text or "custom code" in text:
        return (
            f"{name} needs code that comes with it; read that code, then set trust_remote_code: "
            "true for this model."
        )
    if location.gguf_file and not isinstance(error, OSError | ImportError):
        return (
            f"transformers cannot read {location.gguf_file} ({type(error).__name__}: {text}); "
            "fetch or copy it again, or take a model that transformers reads from GGUF."
        )
    if folder is not None and not (folder / "config.json").is_file():
        return f"the folder {folder} has no config.json; it is not a Hugging Face model folder."
    if "safetensors" in text and "no file named" in text:
        return (
            f"{name} has no weights as safetensors, and pickle files are not read: they can run "
            "code; convert them to safetensors first."
        )
    if "SafetensorError" in kinds:
        return f"its safetensors file is damaged ({text}); fetch or copy it again."
    if "JSONDecodeError" in kinds:
        files = sorted(Path(folder).glob("*.json")) if folder else []
        broken = ", ".join(p.name for p in files if not _is_json(p)) or "one of its files"
        return f"{broken} is not a valid JSON file ({text}); fetch or copy it again."
    if folder is not None and not any(p for like in TOKENIZER for p in folder.glob(like)):
        return f"{name} {NO_TOKENIZER}"
    if not isinstance(error, OSError | ValueError | ImportError):
        return (
            f"transformers cannot make a model of its files ({type(error).__name__}: {text}); "
            "check config.json and the tokenizer's files, or fetch them again."
        )
    return text


def not_finite(model: str, revision: str, dtype: str, place: str) -> str:
    """Message about NaN or infinity in a model's states, with their place ("layer 3 for …")."""
    remedy = (
        "check the weights, which hold NaN or infinity or lead to them."
        if dtype == "float32"
        else "try dtype: float32, or check the weights."
    )
    return f"{model} at {revision!r} gives NaN or infinity at {place} in {dtype}; {remedy}"


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return True


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__
