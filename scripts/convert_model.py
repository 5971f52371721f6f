"""Convert a model from GGUF, or from pickled weights, to a folder with safetensors."""

from __future__ import annotations

from pathlib import Path

from layerwise.run import script


def main(arguments: script.Arguments) -> None:
    """Load, save, and write the key when the folder is complete."""
    import torch

    from layerwise.models import gguf, pickled
    from layerwise.models.source import locate

    torch.set_num_threads(arguments.threads)
    source = script.fetched_entry(arguments.config, arguments.model, arguments.revision).source
    location, target = locate(source, arguments.revision), arguments.output
    if source.gguf_file:
        gguf.convert(location, target)
    else:
        pickled.convert(Path(location.name), source.pickled, target)
    script.write_marker(target, arguments.key)


if __name__ == "__main__":
    output = "folder to write"
    script.run(main, script.parser(__doc__, "model", "revision", stage="converted", output=output))
