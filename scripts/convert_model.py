"""Convert a model from GGUF, or from pickled weights, to a folder with safetensors, once.

Reading GGUF is slow, and of pickled weights only tensors are read.
"""

import json
import logging
import pickle
import shutil
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from layerwise.errors import LayerwiseError
from layerwise.io.files import replacing_folder
from layerwise.run import script

if TYPE_CHECKING:
    from layerwise.config.models import Pickled
    from layerwise.models.source import Location

log = logging.getLogger(__name__)

SPECIAL = {"unk": "[UNK]", "pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "special_tokens_map.json",
)


def main(job: script.Job) -> None:
    """Load, save, and write the key when the folder is complete."""
    import torch

    from layerwise.models.source import locate

    torch.set_num_threads(job.threads)
    source = job.config.models[job.names["model"]].source
    location = locate(source, job.names["revision"])
    with replacing_folder(Path(job.output[0]).parent) as folder:
        if source.gguf_file:
            convert_gguf(location, folder)
        else:
            convert_pickled(Path(location.name), source.pickled, folder)
        script.write_marker(folder, job.key)


def convert_gguf(location: "Location", target: Path) -> None:
    """Dequantise a GGUF model and save it with its tokenizer as float32 safetensors.

    Parameters
    ----------
    location : a folder, or a name on the hub with its revision, with its ``gguf_file`` set
    target : the empty folder to write

    Raises
    ------
    LayerwiseError
        If the file cannot be found or read; the message says why.
    """
    from unittest.mock import patch

    import torch
    from transformers import AutoModel, AutoTokenizer

    from layerwise.models.source import quiet, why
    from layerwise.project import require

    quiet()
    gguf = require("gguf", "gguf")
    # transformers reads the file for the tokenizer, the configuration and the weights, and makes
    # the table of names for every module: half of a conversion's time.
    reader, names = map(cache, (gguf.GGUFReader, gguf.get_tensor_name_map))
    common = location.options()
    log.info("reading %s", location.gguf_file)
    try:
        with (
            patch.object(gguf, "GGUFReader", reader),
            patch.object(gguf, "get_tensor_name_map", names),
        ):
            tokenizer = AutoTokenizer.from_pretrained(location.name, **common)
            model = AutoModel.from_pretrained(location.name, dtype=torch.float32, **common)
    except Exception as error:  # transformers fails in many ways on broken files
        raise LayerwiseError(
            f"GGUF model {location.name}: {why(error, location)}", code="unreadable"
        ) from error
    # transformers refuses to save what it calls quantised; the weights are ordinary by now.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def convert_pickled(folder: Path, settings: "Pickled", target: Path) -> None:
    """Save a model's tensors as safetensors, with its configuration and tokenizer.

    Parameters
    ----------
    folder : Path
        The model's folder, with ``config.json``.
    settings : Pickled
    target : Path
        The empty folder to write.

    Raises
    ------
    LayerwiseError
        If a file is missing, or the weights hold anything but tensors: that could run code.
    """
    import torch
    from safetensors.torch import save_file

    file = folder / settings.file
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        state = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise LayerwiseError(
            f"There is no {error.filename}; check the source of the model.", code="missing_file"
        ) from None
    except json.JSONDecodeError as error:
        raise LayerwiseError(
            f"{folder / 'config.json'} is no JSON ({error}); fetch the model again.",
            code="unreadable",
        ) from error
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        reason = str(error).partition("\n")[0]
        raise LayerwiseError(
            f"{file} cannot be read as tensors alone ({reason:.200}); convert it to safetensors "
            "where it comes from.",
            code="unreadable",
        ) from error
    if not isinstance(state, dict) or not all(isinstance(t, torch.Tensor) for t in state.values()):
        raise LayerwiseError(
            f"{file} holds no dictionary of tensors; save the model's state_dict.",
            code="unreadable",
        )
    if settings.model_type is not None:
        config["model_type"] = settings.model_type
    # Tensors that share memory are written once each.
    tensors = {name: tensor.clone().contiguous() for name, tensor in state.items()}
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    if settings.vocabulary is not None:
        _save_tokenizer(folder / settings.vocabulary, settings.token, target)
        return
    for name in TOKENIZER_FILES:
        if (folder / name).is_file():
            shutil.copy(folder / name, target / name)


def _save_tokenizer(vocabulary: Path, token: str, target: Path) -> None:
    """Save a tokenizer that looks up what a regular expression matches, between CLS and SEP."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    lines = vocabulary.read_text(encoding="utf-8").splitlines()
    numbers = {line.strip(): number for number, line in enumerate(lines)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token=SPECIAL["unk"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(token), "removed", invert=True)
    ends = [(SPECIAL[name], numbers[SPECIAL[name]]) for name in ("cls", "sep")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{SPECIAL['cls']} $A {SPECIAL['sep']}", special_tokens=ends
    )
    special = {f"{name}_token": word for name, word in SPECIAL.items()}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(target)


if __name__ == "__main__":
    script.run(main, snakemake)
