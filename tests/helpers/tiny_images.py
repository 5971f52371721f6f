"""Tiny random vision models of several families, saved as Hugging Face folders."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf

from helpers import tiny
from media.images import Picture, png

SIZE, PATCH = 32, 8
COMMON = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
IMAGE = {"image_size": SIZE, "patch_size": PATCH}
MLP = {"intermediate_size": 48}
TEXT = {**COMMON, **MLP, "vocab_size": 50, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
LEVELS = 5

# Family: its config, and how many tokens stand in front of the 16 patches.
FAMILIES: dict[str, tuple[Any, int]] = {
    "vit": (lambda: hf.ViTConfig(**COMMON, **IMAGE, **MLP), 1),
    "deit": (lambda: hf.DeiTConfig(**COMMON, **IMAGE, **MLP), 2),
    "beit": (lambda: hf.BeitConfig(**COMMON, **IMAGE, **MLP, use_relative_position_bias=True), 1),
    "dinov2": (lambda: hf.Dinov2Config(**COMMON, **IMAGE, mlp_ratio=2), 1),
    "dinov2_with_registers": (
        lambda: hf.Dinov2WithRegistersConfig(
            **COMMON, **IMAGE, mlp_ratio=2, num_register_tokens=4
        ),
        5,
    ),
    "dinov3_vit": (lambda: hf.DINOv3ViTConfig(**COMMON, **IMAGE, **MLP, num_register_tokens=4), 5),
    "vit_mae": (
        lambda: hf.ViTMAEConfig(
            **COMMON,
            **IMAGE,
            **MLP,
            decoder_hidden_size=32,
            decoder_num_hidden_layers=1,
            decoder_num_attention_heads=4,
            decoder_intermediate_size=48,
        ),
        1,
    ),
    "aimv2_vision_model": (lambda: hf.Aimv2VisionConfig(**COMMON, **IMAGE, **MLP), 0),
    "siglip_vision_model": (lambda: hf.SiglipVisionConfig(**COMMON, **IMAGE, **MLP), 0),
    "siglip": (
        lambda: hf.SiglipConfig(text_config=TEXT, vision_config={**COMMON, **IMAGE, **MLP}),
        0,
    ),
    "clip_vision_model": (lambda: hf.CLIPVisionConfig(**COMMON, **IMAGE, **MLP), 1),
    "clip": (lambda: hf.CLIPConfig(text_config=TEXT, vision_config={**COMMON, **IMAGE, **MLP}), 1),
    "imagegpt": (
        lambda: hf.ImageGPTConfig(
            vocab_size=LEVELS + 1, n_positions=16, n_embd=32, n_layer=3, n_head=4
        ),
        1,
    ),
}


def save(family: str, folder: Path, *, seed: int = 0, vectors: bool = True) -> Path:
    """A random model with its image processor as a Hugging Face folder."""
    torch.manual_seed(seed)
    model = hf.AutoModel.from_config(FAMILIES[family][0]())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name and parameter.ndim >= 1:
                parameter.normal_(std=0.1)
    if vectors:
        tiny.shake_vectors(model)
    model.save_pretrained(folder)
    if family == "imagegpt":
        values = np.linspace(-1, 1, LEVELS)
        hf.ImageGPTImageProcessor(
            clusters=[[v, v, v] for v in values], size={"height": 4, "width": 4}
        ).save_pretrained(folder)
    else:
        hf.ViTImageProcessorPil(size={"height": SIZE, "width": SIZE}).save_pretrained(folder)
    return folder


def pictures(n: int, *, seed: int = 0) -> list[Picture]:
    """Images of coloured squares, of several sizes."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(n):
        squares = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        block = np.ones((*rng.integers(5, 15, 2), 1), np.uint8)
        data = png(np.kron(squares, block))
        made.append(Picture(f"picture-{number}", data))
    return made
