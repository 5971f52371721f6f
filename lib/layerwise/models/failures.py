"""Messages about models that cannot be loaded or run."""

from __future__ import annotations

from layerwise.errors import causes
from layerwise.io.files import disk_fault, memory_fault
from layerwise.models.source import Location, hub_answers

OFFLINE = (
    "{name} is not in the cache, and the hub cannot be reached; fetch it on a "
    "machine with a network (`hf download {name} --revision {revision}`), set HF_HOME to a cache "
    "that has it, or name a folder that holds it."
)
NO_TOKENIZER = (
    "it has no tokenizer with a vocabulary; put the tokenizer's files (such as tokenizer.json and "
    "tokenizer_config.json) into the folder of the weights."
)
CODE = (
    "{name} needs code that comes with it; read that code, then set trust_remote_code: true for "
    "this model."
)
# Types of exceptions or words in their texts, and what they mean; the first that fits.
SIGNS = {
    "GatedRepoError": "access to {name} needs a token: accept its terms on its page, then run `hf "
    "auth login` or set HF_TOKEN.",
    "RevisionNotFoundError": "{name} has no branch or tag {revision!r}; see the branches on its "
    "page.",
    "RepositoryNotFoundError": "there is no model {name!r} on the hub, or it is private: check "
    "the name, or run `hf auth login` if it is yours.",
    "HFValidationError": "{name!r} cannot be a name on the hub; names are like 'owner/model'.",
    "LocalEntryNotFoundError": OFFLINE,
    "OfflineModeIsEnabled": OFFLINE,
    "ConnectError": OFFLINE,
    "trust_remote_code": CODE,
    "custom code": CODE,
    "instantiate the backend tokenizer": NO_TOKENIZER,
    "no file named model.safetensors": "{name} has no weights as safetensors, and pickle files "
    "are not read: they can run code; convert them to safetensors first.",
    "preprocessor_config.json": "{name} has no preprocessor_config.json, which says how images "
    "are scaled and normalised; put it there, or say so in the model's entry, as in preprocess: "
    "{{size: 224, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}}.",
}


def why(error: BaseException, location: Location) -> str:
    """One sentence: the problem and how to fix it.

    We use the types of the exceptions in the chain of causes where we can. transformers raises
    OSError for most problems, with texts that change.
    """
    text = " ".join(str(error).split())
    about = {"name": location.name, "revision": location.revision}
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
    return (
        f"transformers cannot read {location.gguf_file or 'its files'} ({type(error).__name__}: "
        f"{text}); check config.json and the tokenizer's files, or fetch or copy it again."
    )
