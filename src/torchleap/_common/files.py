"""Atomic files."""

import hashlib
import json
from typing import Any

from .text import (
    FULL,
    append,
    held,
    make_folder,
    parse_json,
    read_json,
    read_toml,
    replace_file,
    replace_together,
    write_whole,
    writing,
)

__all__ = [
    "FULL",
    "append",
    "held",
    "key_of",
    "make_folder",
    "parse_json",
    "read_json",
    "read_toml",
    "replace_file",
    "replace_together",
    "write_whole",
    "writing",
]


def key_of(content: Any) -> str:
    """Return a short name for what determines a folder's content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[
        :24
    ]
