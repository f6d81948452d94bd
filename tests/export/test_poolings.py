"""What rankers compute is loaded by a process that has none of their classes."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

import torchleap as tl
from tests.export.poolings import CASES, batch_of

BATCHES = [(7, 5), (1, 5), (20, 3), (4, 9), (1, 2)]  # rows and length
LOADING = """
import sys
from pathlib import Path
from safetensors.torch import load_file
import torch
import torchleap as tl

for folder in sorted(Path(sys.argv[1]).iterdir()):
    cases = load_file(folder / "cases.safetensors")
    try:
        model = tl.export.load(folder / "model")
        for case in range(5):
            names = ("user", "item", "city", "hist")
            batch = {name: cases[f"{case}.{name}"] for name in names}
            torch.testing.assert_close(model(batch), cases[f"{case}.output"], rtol=1e-5, atol=1e-6)
        print(folder.name, "equal")
    except Exception as error:
        print(folder.name, type(error).__name__, str(error).splitlines()[0])
assert not any(name.startswith("tests") for name in sys.modules)
"""


def pruned(build):
    torch.manual_seed(0)
    model = build()
    plugin = tl.attach(model, model.widths, at="fields")
    for step in range(3):
        model.train()(batch_of(16, 5, step))
    selection = tl.Selection(plugin.fields, (0.1, 0.9, 0.2, 0.8), (False, True, False, True))
    plan = plugin.plan(selection, example=batch_of(8, 5, 1))
    return plan.apply().eval(), plan


@pytest.fixture(scope="module")
def loaded_elsewhere(tmp_path_factory):
    """Save each model with some batches, and return what another process says about them."""
    place = tmp_path_factory.mktemp("poolings")
    saved = {}
    for name, build in CASES.items():
        small, _ = pruned(build)
        (place / name).mkdir()
        saved[name] = tl.export.save(small, place / name / "model")
        cases = {}
        for case, (rows, length) in enumerate(BATCHES):
            batch = batch_of(rows, length, seed=100 + case)
            with torch.no_grad():
                cases[f"{case}.output"] = small(batch)
            cases |= {f"{case}.{key}": value for key, value in batch.items()}
        save_file(cases, place / name / "cases.safetensors")
    command = [sys.executable, "-c", LOADING, str(place)]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    said = dict(line.split(" ", 1) for line in child.stdout.splitlines())
    return saved, said


def test_there_are_as_many_as_rankers_have():
    assert len(CASES) >= 41


@pytest.mark.parametrize("name", CASES)
def test_a_pooling_is_loaded_without_its_code(name, loaded_elsewhere):
    saved, said = loaded_elsewhere
    assert saved[name].in_the_way == ()
    assert said[name] == "equal"
