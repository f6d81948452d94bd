"""Criteo's display advertising challenge."""

import pytest

import torchleap as tl


def values(task, name, part="train"):
    ids = getattr(task, part).all().ids[:, task.slots(ids=True)[name]]
    words = ["missing", "unseen", *task.vocabulary(name)]
    return [[words[number] for number in row] for row in ids.tolist()]


def test_text_among_the_numbers_of_criteo_is_refused(tmp_path):
    def write(number):
        lines = ["\t".join([str(i % 2), number, *["1"] * 12, *["abc"] * 26]) for i in range(40)]
        (tmp_path / "train.txt").write_text("\n".join(lines) + "\n")
        return tl.data.criteo(tmp_path / "train.txt")

    with pytest.raises(
        tl.DataError, match="cannot be read: conversion from `str` to `f64` failed in column 'I1'"
    ):
        write("x")
    for number, found in (("nan", []), ("", []), ("2.7", ["0"]), ("1e30", ["4771"])):
        assert write(number).vocabulary("I1") == found


def test_criteos_numbers_become_steps(tmp_path):
    def line(number, label):
        return "\t".join([str(label), str(number), *[""] * 12, *["68fd1e64"] * 26])

    numbers = [-3, 0, 1, 2, 3, 10, 1000, ""]
    (tmp_path / "train.txt").write_text(
        "".join(line(n, i % 2) + "\n" for i, n in enumerate(numbers * 4))
    )
    task = tl.data.criteo(tmp_path, shares=(0.5, 0.25, 0.25))
    assert len(task.columns) == 39
    expected = [
        "-5",
        "-2",
        "-1",
        "0",
        "1",
        "5",
        "47",
        "missing",
    ]  # int(log(x) ** 2) above 2, else x - 2
    assert [value for (value,) in values(task, "I1")[:8]] == expected
    assert values(task, "I2")[0] == ["missing"]
    assert values(task, "C1")[0] == ["68fd1e64"]
