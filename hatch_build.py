"""Metadata that follow from the repository's address: URLs, and links in the README."""

from __future__ import annotations

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Metadata(MetadataHookInterface):
    """Fill in ``urls`` and ``readme``, whose relative links become absolute."""

    def update(self, metadata: dict) -> None:
        """Called by hatchling with the table ``project`` of pyproject.toml."""
        repository = self.config["repository"]
        metadata["urls"] = {
            "Repository": repository,
            "Issues": f"{repository}/issues",
            "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        }
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        # Pictures are shown by their content, pages by the site.
        text = re.sub(r"(!\[[^\]]*\]\()(?!\w+:|#)", rf"\1{repository}/raw/main/", text)
        text = re.sub(r"((?<!!)\[[^\]]*\]\()(?!\w+:|#)", rf"\1{repository}/blob/main/", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
