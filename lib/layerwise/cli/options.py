"""Options and output that the commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from layerwise.errors import LayerwiseError

FIGURES = (".png", ".pdf", ".svg")
TEXT_FILES = ".txt (one per line), .csv, .tsv, .jsonl or .parquet"
TEXT = Annotated[
    list[str] | None,
    Option(help="Column of the texts (default: text). Repeat for the second text of pairs."),
]
LABEL = Annotated[str | None, Option(help="Column of the label (default: label, or score).")]


def output_file(path: Path | None) -> Path | None:
    """Make the folder of a file to write, before anything is computed."""
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            problem = f"{path} cannot be written ({error.strerror}); name another file."
            raise LayerwiseError(problem, code="disk") from error
    return path


def figure_file(path: Path | None) -> Path | None:
    """As `output_file`; refuse a figure of another format."""
    if path is not None and path.suffix.lower() not in FIGURES:
        problem = f"{path} is no figure; name a file of type {', '.join(FIGURES)}."
        raise LayerwiseError(problem, code="unknown_value")
    return output_file(path)


REVISION = Annotated[str, Option(help="Branch, tag or commit of a model on the hub.")]
DEVICE = Annotated[str, Option(help="auto, cpu, cuda or cuda:N.")]
DTYPE = Annotated[str, Option(help="float32, bfloat16 or float16.")]
THREADS = Annotated[int, Option(min=1, max=1024, help="CPU threads.")]
MAX_LENGTH = Annotated[
    int | None,
    Option(
        min=1,
        help="Cut texts after this many tokens, recordings after this many frames (default: the "
        "model's limit).",
    ),
]
CSV = Annotated[Path | None, Option(help="Write the table as CSV.", callback=output_file)]
JSON = Annotated[Path | None, Option(help="Write the table as JSON.", callback=output_file)]


def write_table(table: Any, csv: Path | None, json: Path | None) -> None:
    if csv is not None:
        table.to_csv(csv, index=False)
    if json is not None:
        table.to_json(json, orient="records", indent=1)


def say(*lines: str) -> None:
    for line in lines:
        typer.echo(line)
