"""The folder in which `decide` saves its trainings, so that the same call resumes them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._common.files import make_folder
from .._common.plain import plain, read_json, write_json
from ..distributed import ranks
from ..selection import Rule
from ..training.fit import TrainingError

NOTE = "decision.json"  # holds the settings that the checkpoints belong to
FULL = "full.pt"
SEARCH = "search"
FINE_TUNING = "fine.pt"
FURTHER = ("repeat-*", "fold-*")  # folders of further trainings, each like the folder itself


def is_saved(checkpoint: str | os.PathLike[str]) -> bool:
    """Return whether `decide` can resume from this folder."""
    folder = Path(checkpoint)
    return (folder / FULL).exists() or any((folder / SEARCH).glob("*.pt"))


def forget(checkpoint: str | os.PathLike[str]) -> None:
    """Remove what `decide` has saved in a folder, and the folder if nothing else is in it."""
    folder = Path(checkpoint)
    for pattern in FURTHER:
        for further in folder.glob(pattern):
            forget(further)
    searched = folder / SEARCH
    saved = {folder: (FULL, FINE_TUNING, NOTE), searched: ("*.pt", "search.txt")}
    for place, patterns in saved.items():
        for pattern in patterns:
            partial = f".{pattern}.*"  # left by a process that was killed while it wrote
            for path in (*place.glob(pattern), *place.glob(partial)):
                path.unlink()
    for place in (searched, folder):
        if place.is_dir() and not any(place.iterdir()):
            place.rmdir()


def claim(folder: Path, settings: Mapping[str, Any], rule: Rule | None) -> None:
    """Write the settings that a folder's checkpoints belong to into it; refuse those of others.

    Another rule needs no other training: it only starts the fine-tuning from scratch. On several
    ranks the first one does this, and all have to call it.

    Args:
        folder: The folder, which is made if it does not exist.
        settings: The settings that checkpoints have to share, by name.
        rule: The rule that the user gave; None if she gave none.
    """
    given = None if rule is None else rule.to_json()
    with ranks.first_before_others():
        if ranks.is_first():
            _claim(folder, plain(settings, "settings"), given)


def _claim(folder: Path, settings: dict[str, Any], rule: dict[str, float] | None) -> None:
    make_folder(folder)
    note = folder / NOTE
    rule_before = None
    if note.exists():
        settings_before, rule_before = _read_note(note)
        _refuse_others(folder, settings_before, settings)
    if rule_before != rule:
        (folder / FINE_TUNING).unlink(missing_ok=True)
    write_json(note, {"settings": settings, "rule": rule})


def _refuse_others(folder: Path, before: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    problems = []
    for name, value in settings.items():
        if before.get(name) == value:
            continue
        if name == "data":
            problems.append("its data is another, or was changed")
        else:
            problems.append(f"its {name} is {before.get(name)}, not {value}")
    if problems:
        raise TrainingError(
            f"{folder} is of another run: {'; '.join(problems[:3])}. "
            "Resume with the same settings, or remove it to start from scratch."
        )


def _read_note(path: Path) -> tuple[dict[str, Any], Any]:
    """Return the settings and the rule of a note."""
    cure = f"Remove {path.parent} to start from scratch."
    content = read_json(path, "the note of a decision", TrainingError, cure)
    if not isinstance(content, dict) or not isinstance(content.get("settings"), dict):
        raise TrainingError(f"{path} is damaged: it has no settings. {cure}")
    return content["settings"], content.get("rule")
