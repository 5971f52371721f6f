"""Convert weights that PyTorch pickled to a Hugging Face folder once; only tensors are read."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from layerwise.config.models import Pickled
from layerwise.errors import LayerwiseError

SPECIAL = {"unk": "[UNK]", "pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


def convert(folder: Path, settings: Pickled, target: Path) -> None:
    """Save a model's tensors as safetensors, with its configuration and tokenizer.

    Parameters
    ----------
    folder : Path
        The model's folder, with ``config.json``.
    settings : Pickled
    target : Path
        The folder to write; files of an earlier conversion are removed.

    Raises
    ------
    LayerwiseError
        If a file is missing, or the weights hold anything but tensors: that could run code.
    """
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
    if target.is_dir():
        shutil.rmtree(target)
    target.mkdir(parents=True)
    # Tensors that share memory are written once each.
    tensors = {name: tensor.clone().contiguous() for name, tensor in state.items()}
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    if settings.vocabulary is not None:
        _save_tokenizer(folder / settings.vocabulary, settings.token, target)
        return
    for name in (
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
        "special_tokens_map.json",
    ):
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
