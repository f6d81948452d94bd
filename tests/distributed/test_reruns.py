"""Further trainings of a decision on two ranks: both return the same certificate."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import torchleap as tl

from ..pipeline.test_decide import COLUMNS, TRAINING, rows
from .ranks_of import keep, run


def decided(folder: Path, **settings: int) -> None:
    """Keep the certificate and what further trainings have shown, as JSON."""
    task = tl.data.read(rows(600), label="click", columns=COLUMNS)
    found = tl.decide(
        task,
        model="mlp",
        method="permutation",
        training=replace(TRAINING, epochs=1),
        share=0.5,
        checkpoint=folder / "state",
        **settings,
    )
    keep(folder, json.dumps([found.record["certificate"], found.record["reruns"]]))


def repeated(folder: Path) -> None:
    decided(folder, repeats=2)


def crossed(folder: Path) -> None:
    decided(folder, folds=2)


@pytest.mark.parametrize("what", [repeated, crossed], ids=["repeats", "folds"])
def test_all_ranks_return_the_same_certificate(tmp_path, what):
    one, other = run(what, tmp_path)
    assert one == other
    certificate, reruns = json.loads(one)
    assert certificate["repeats"] + certificate["folds"] == (2 if what is repeated else 3)
    assert len(reruns["changes"]) == (1 if what is repeated else 2)
    assert not (tmp_path / "state").exists()
