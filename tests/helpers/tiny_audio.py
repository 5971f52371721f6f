"""Tiny random audio models of several families, saved as Hugging Face folders."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import torch
import transformers as hf

from helpers import tiny
from media.audio import Recording, wav

RATE = 16_000
COMMON = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
# Frames of 20 ms, as those of the real models, of few channels.
WAVES = {**COMMON, "vocab_size": 32, "conv_dim": [8] * 7, "num_conv_pos_embeddings": 16}
STABLE = {**WAVES, "do_stable_layer_norm": True, "feat_extract_norm": "layer"}
SECONDS = 2
WHISPER = {
    "d_model": 32,
    **{f"{part}_layers": 3 for part in ("encoder", "decoder")},
    **{f"{part}_attention_heads": 4 for part in ("encoder", "decoder")},
    **{f"{part}_ffn_dim": 48 for part in ("encoder", "decoder")},
}

FAMILIES: dict[str, Any] = {
    "wav2vec2": lambda: hf.Wav2Vec2Config(**WAVES),
    "wav2vec2_large": lambda: hf.Wav2Vec2Config(**STABLE),
    "hubert": lambda: hf.HubertConfig(**WAVES),
    "hubert_large": lambda: hf.HubertConfig(**STABLE),
    "wavlm": lambda: hf.WavLMConfig(**WAVES),
    "wavlm_large": lambda: hf.WavLMConfig(**STABLE),
    "unispeech_sat": lambda: hf.UniSpeechSatConfig(**WAVES),
    "data2vec_audio": lambda: hf.Data2VecAudioConfig(
        **{**WAVES, "num_conv_pos_embeddings": 2, "conv_pos_kernel_size": 5}
    ),
    "wav2vec2_conformer": lambda: hf.Wav2Vec2ConformerConfig(
        **{**WAVES, "conv_depthwise_kernel_size": 5}
    ),
    "wav2vec2_bert": lambda: hf.Wav2Vec2BertConfig(
        **COMMON, feature_projection_input_dim=160, conv_depthwise_kernel_size=5
    ),
    "whisper": lambda: hf.WhisperConfig(
        **WHISPER,
        num_mel_bins=16,
        max_source_positions=50 * SECONDS,
        vocab_size=100,
        pad_token_id=0,
    ),
    "ast": lambda: hf.ASTConfig(**COMMON, max_length=100, num_mel_bins=32),
}


def extractor(family: str) -> Any:
    """The feature extractor of a family."""
    if family == "whisper":
        return hf.WhisperFeatureExtractor(feature_size=16, chunk_length=SECONDS)
    if family == "ast":
        return hf.ASTFeatureExtractor(max_length=100, num_mel_bins=32)
    if family == "wav2vec2_bert":
        return hf.SeamlessM4TFeatureExtractor()
    return hf.Wav2Vec2FeatureExtractor()


def save(family: str, folder: Path, *, seed: int = 0, vectors: bool = True) -> Path:
    """A random model with its feature extractor as a Hugging Face folder."""
    torch.manual_seed(seed)
    model = hf.AutoModel.from_config(FAMILIES[family]())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name and "parametrizations" not in name and parameter.ndim > 1:
                parameter.normal_(std=0.2)
    if vectors:
        tiny.shake_vectors(model)
    model.save_pretrained(folder)
    extractor(family).save_pretrained(folder)
    return folder


def samples(n: int, *, seed: int = 0) -> list[np.ndarray]:
    """Tones in noise, of a fifth of a second to one second."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(n):
        time = np.arange(int(rng.integers(RATE // 5, RATE))) / RATE
        tone = np.sin(2 * np.pi * rng.uniform(100, 2000) * time)
        made.append((0.3 * tone + rng.normal(0, 0.05, len(time))).astype(np.float32))
    return made


def recordings(n: int, *, seed: int = 0) -> list[Recording]:
    """Recordings of tones in noise."""
    made = samples(n, seed=seed)
    return [Recording(f"recording-{k}", wav(one, RATE)) for k, one in enumerate(made)]


def tones(n: int, *, column: str = "audio", seed: int = 0) -> pa.Table:
    """Recordings of low and high tones in noise, as a data set of the hub has them."""
    rng = np.random.default_rng(seed)
    labels = [number % 2 for number in range(n)]
    time = np.arange(RATE // 4) / RATE
    held = []
    for label in labels:
        pitch = rng.uniform(150, 300) + 1500 * label
        samples = np.sin(2 * np.pi * pitch * time) + rng.normal(0, 0.1, len(time))
        held.append({"bytes": wav(samples.astype(np.float32), RATE), "path": None})
    features = datasets.Features(
        {column: datasets.Audio(), "label": datasets.ClassLabel(names=["low", "high"])}
    )
    # Not through `datasets`, which needs torchcodec to write them.
    return pa.table({column: held, "label": labels}, schema=features.arrow_schema)
