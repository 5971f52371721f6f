"""Turn a GGUF model into an ordinary Hugging Face folder with safetensors, once."""

from __future__ import annotations

from layerwise import cli


def main(run: cli.Run) -> None:
    """Load, save, and leave a stamp that says that the folder is whole."""
    import torch

    from layerwise.models.gguf import convert
    from layerwise.models.source import locate
    from layerwise.workflow import stamps

    torch.set_num_threads(run.threads)
    source = run.config.models[run.names["model"]].source
    marker = run.files["folder"]
    marker.unlink(missing_ok=True)  # what is half overwritten must not pass for whole
    convert(locate(source, run.names["revision"]), marker.parent)
    stamps.write(marker, run.stamp)


if __name__ == "__main__":
    cli.run_job("convert_gguf", main, __doc__)
