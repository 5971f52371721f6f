"""Messages about models that cannot be loaded or run."""

from __future__ import annotations

from collections.abc import Iterator

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
    chain = list(_chain(error))
    kinds = {kind.__name__ for link in chain for kind in type(link).__mro__}
    text = " ".join(str(error).split())
    name, revision, folder = location.name, location.revision, location.folder
    fault = next(
        (f for e in chain if isinstance(e, OSError) and e.errno and (f := disk_fault(e))), ""
    )
    files = (getattr(link, "filename", None) for link in chain)
    where = next((f" ({file})" for file in files if file), "")
    offline = {"LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectError"}
    # The first that applies.
    rules = (
        (
            fault,
            f"its files cannot be read or written{where}: {fault}; free space, fix the folder's "
            "permissions, or set HF_HOME to a folder that can be written.",
        ),
        (
            "GatedRepoError" in kinds,
            f"access to {name} needs a token: accept its terms on its page, then run `hf auth "
            "login` or set HF_TOKEN.",
        ),
        (
            "RevisionNotFoundError" in kinds,
            f"{name} has no branch or tag {revision!r}; see the branches on its page.",
        ),
        (
            "RepositoryNotFoundError" in kinds,
            f"there is no model {name!r} on the hub, or it is private: check the name, or run `hf "
            "auth login` if it is yours.",
        ),
        (
            "HFValidationError" in kinds,
            f"{name!r} cannot be a name on the hub; names are like 'owner/model'.",
        ),
        (
            kinds & offline or not location.reachable(),
            f"{name} is not in the cache, and the hub cannot be reached; fetch it on a machine "
            f"with a network (`hf download {name} --revision {revision}`), set "
            "HF_HOME to a cache that has it, or name a folder that holds it.",
        ),
        (
            "trust_remote_code" in text or "custom code" in text,
            f"{name} needs code that comes with it; read that code, then set trust_remote_code: "
            "true for this model.",
        ),
        (
            folder and not location.gguf_file and not (folder / "config.json").is_file(),
            f"the folder {folder} has no config.json; it is not a Hugging Face model folder.",
        ),
        (
            "safetensors" in text and "no file named" in text,
            f"{name} has no weights as safetensors, and pickle files are not read: they can run "
            "code; convert them to safetensors first.",
        ),
        (
            "preprocessor_config.json" in text,
            f"{name} has no preprocessor_config.json, which says how images are scaled and "
            "normalised; put it there, or say so in the model's entry, as in preprocess: "
            "{size: 224, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}.",
        ),
        (
            folder
            and not location.gguf_file
            and not any(file for like in TOKENIZER for file in folder.glob(like)),
            f"{name} {NO_TOKENIZER}",
        ),
    )
    damaged = (
        f"transformers cannot read {location.gguf_file or 'its files'} ({type(error).__name__}: "
        f"{text}); check config.json and the tokenizer's files, or fetch or copy it again."
    )
    return next((message for applies, message in rules if applies), damaged)


def not_finite(model: str, revision: str, dtype: str, place: str) -> str:
    """Message about NaN or infinity in a model's states, with their place ("layer 3 for …")."""
    remedy = (
        "check the weights, which hold NaN or infinity or lead to them."
        if dtype == "float32"
        else "try dtype: float32, or check the weights."
    )
    return f"{model} at {revision!r} gives NaN or infinity at {place} in {dtype}; {remedy}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__
