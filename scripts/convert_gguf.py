"""Convert a GGUF model to a folder with safetensors."""

from __future__ import annotations

from layerwise.workflow import script


def main(arguments: script.Arguments) -> None:
    """Load, save, and write a marker when the folder is complete."""
    import torch

    from layerwise.models.gguf import convert
    from layerwise.models.source import locate

    torch.set_num_threads(arguments.threads)
    source = arguments.config.models[arguments.model].source
    convert(locate(source, arguments.revision), arguments.output.parent)
    script.write_marker(arguments.output, arguments.key)


if __name__ == "__main__":
    output = "marker to write in the model's new folder"
    script.run(main, script.parser(__doc__, "model", "revision", stage="gguf", output=output))
