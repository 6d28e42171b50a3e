"""Hook of mkdocs: the decisions, in their order, as the last section of the navigation."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    """Add every page of ``decisions/``."""
    pages = sorted(Path(config["docs_dir"], "decisions").glob("*.md"))
    config["nav"].append({"Decisions": [f"decisions/{page.name}" for page in pages]})
    return config
