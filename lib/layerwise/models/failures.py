"""Why a model could not be had: its name, the network, the token, the disk, or its files."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from layerwise.models.source import Location

DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}


def why(error: BaseException, location: Location) -> str:
    """One sentence on what went wrong and how to mend it.

    Goes by the exceptions' types along the chain of causes; transformers says most things as
    OSError with a text, and texts change.
    """
    kinds = {kind.__name__ for e in _chain(error) for kind in type(e).__mro__}
    text = " ".join(str(error).split())
    name, revision = location.name, location.revision
    for cause in _chain(error):
        if isinstance(cause, OSError) and cause.errno in DISK:
            where = f" ({cause.filename})" if cause.filename else ""
            return (
                f"the disk did not take or give its files{where}: {cause.strerror}; free space, "
                "mend the folder's permissions, or set HF_HOME to a folder that can be written."
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
            f"there is no model of the name {name!r} on the hub, or it is private: check the "
            "name, or run `hf auth login` if it is yours."
        )
    if "HFValidationError" in kinds:
        return f"{name!r} cannot be a name on the hub, which are like 'owner/model'."
    if kinds & {"LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectError"}:
        return (
            f"{name} at {revision!r} is not in the cache and the network does not reach the hub; "
            "fetch it on a machine with a network (`hf download`), or set HF_HOME to a cache "
            "that has it."
        )
    if "HfHubHTTPError" in kinds:
        return f"the hub refused {name}: {text}"
    return _of_its_files(error, text, kinds, location)


def _of_its_files(error: BaseException, text: str, kinds: set[str], location: Location) -> str:
    name, folder = location.name, location.folder
    if "trust_remote_code" in text or "custom code" in text:
        return (
            f"{name} needs code of its own to be run; read that code, then set "
            "trust_remote_code: true for this model."
        )
    if location.gguf_file and not isinstance(error, OSError | ImportError):
        return (
            f"transformers cannot read {location.gguf_file} ({type(error).__name__}: {text}); "
            "fetch or copy it again, or take a model that transformers reads from GGUF."
        )
    if folder is not None and not (folder / "config.json").is_file():
        return f"the folder {folder} has no config.json; it is not a Hugging Face model folder."
    if "safetensors" in text and "no file named" in text:
        pickled = sorted(p.name for p in Path(folder).glob("*.bin")) if folder else []
        there = f" (only {', '.join(pickled)})" if pickled else ""
        return (
            f"{name} has no weights as safetensors{there}, and pickle files are not read: they "
            "can run code; convert them to safetensors first."
        )
    if "SafetensorError" in kinds:
        return f"its safetensors file is damaged ({text}); fetch or copy it again."
    if "JSONDecodeError" in kinds:
        files = sorted(Path(folder).glob("*.json")) if folder else []
        broken = ", ".join(p.name for p in files if not _is_json(p)) or "a file of it"
        return f"{broken} is not a valid JSON file ({text}); fetch or copy it again."
    if not isinstance(error, OSError | ValueError | ImportError):
        return (
            f"transformers cannot make a model of its files ({type(error).__name__}: {text}); "
            "check config.json and the tokenizer's files, or fetch them again."
        )
    return text


def lacking(found: Mapping[str, Any], *, encoder_alone: bool) -> str | None:
    """What is wrong with the tensors that were found, or None.

    transformers fills what it does not find with random numbers, and says so in a warning: a file
    that has lost a tensor would give values that look like any other.

    Parameters
    ----------
    found : mapping
        transformers' loading info.
    encoder_alone : bool
        Whether the decoder is left aside, which checkpoints of encoders don't have.
    """
    misfits = sorted(found.get("mismatched_keys") or ())
    if misfits:
        name, came, wanted = misfits[0]
        return (
            f"{name} has the shape {tuple(came)} in its weights, {tuple(wanted)} by its "
            f"config.json ({len(misfits)} do not fit); fetch or copy both again."
        )
    apart = ("decoder.",) if encoder_alone else ()
    lost = sorted(
        name
        for name in found.get("missing_keys") or ()
        # Nothing is read off poolers; language models of BERT's kind come without one.
        if "pooler" not in name and not name.startswith(apart)
    )
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        return (
            f"its weights lack {lost[0]}{more}; fetch or copy them again, or check whether "
            "config.json is of another model."
        )
    return None


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
