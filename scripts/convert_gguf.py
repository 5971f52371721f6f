"""Convert a GGUF model to a folder with safetensors."""

from __future__ import annotations

import argparse

from layerwise.workflow import script


def main(arguments: argparse.Namespace) -> None:
    """Load, save, and write a marker when the folder is complete."""
    import torch

    from layerwise.models.gguf import convert
    from layerwise.models.source import locate
    from layerwise.workflow.script import write_marker

    torch.set_num_threads(arguments.threads)
    source = script.config_of(arguments).models[arguments.model].source
    convert(locate(source, arguments.revision), arguments.output.parent)
    write_marker(arguments.output, arguments.key)


if __name__ == "__main__":
    script.run(
        main,
        script.files(
            script.parser(__doc__, "model", "revision"),
            output="marker to write in the model's new folder",
        ),
    )
