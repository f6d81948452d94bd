"""torch.export and ONNX compute what the model does, for any number of rows."""

import sys

import numpy as np
import pytest
import torch
from torch import nn

import torchleap as tl
from tests.architectures import ARCHITECTURES, attached


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_program_computes_the_same_for_any_number_of_rows(name, tmp_path):
    _, plugin, make = attached(name)
    small = plugin.prune(plugin.select(share=0.6)).train()
    tl.export.to_program(small, tmp_path / "model.pt2", make(seed=1))
    assert small.training
    program = torch.export.load(tmp_path / "model.pt2").module()
    for rows in (1, 2, 50):
        batch = make(rows=rows, seed=rows)
        if isinstance(batch, dict):  # what is no longer read is no input of the program
            batch = {key: value for key, value in batch.items() if key not in ("user", "item")}
        torch.testing.assert_close(program(batch), small.eval()(batch), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["wide_deep", "deepfm", "mlp", "functional"])
def test_onnx_computes_the_same_for_any_number_of_rows(name, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    _, plugin, make = attached(name)
    small = plugin.prune(plugin.select(share=0.6)).eval()
    tl.export.to_onnx(small, tmp_path / "model.onnx", make(seed=1))
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for rows in (1, 2, 50):
        batch = make(rows=rows, seed=rows)
        inputs = (
            [batch[key] for key in ("city", "shop", "hour")] if isinstance(batch, dict) else [batch]
        )
        names = [entry.name for entry in session.get_inputs()]
        (found,) = session.run(
            None, {n: value.numpy() for n, value in zip(names, inputs, strict=True)}
        )
        np.testing.assert_allclose(found, small(batch).detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("padding", [None, 0])
def test_an_embedding_bag_becomes_gather_and_sum(mode, padding, tmp_path):
    onnx = pytest.importorskip("onnx")
    bag = nn.Sequential(
        nn.EmbeddingBag(10, 4, mode=mode, padding_idx=padding), nn.Linear(4, 1)
    ).eval()
    tl.export.to_onnx(bag, tmp_path / "bag.onnx", torch.randint(10, (6, 3)))
    operations = {node.op_type for node in onnx.load(tmp_path / "bag.onnx").graph.node}
    assert "Gather" in operations
    assert "Loop" not in operations
    assert type(bag[0]) is nn.EmbeddingBag


def test_what_cannot_be_exported_leaves_no_file(tmp_path):
    class Undecided(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    class Complex(nn.Module):
        def forward(self, x):
            return torch.linalg.eigvals(x[:, None] * x[:, :, None]).real

    with pytest.raises(tl.SurgeryError, match="Undecided cannot be exported to model.pt2"):
        tl.export.to_program(Undecided(), tmp_path / "model.pt2", torch.randn(4, 2))
    with pytest.raises(tl.SurgeryError, match="Complex cannot be exported to model.onnx"):
        tl.export.to_onnx(Complex(), tmp_path / "model.onnx", torch.randn(4, 2))
    assert not list(tmp_path.iterdir())


def test_a_program_that_differs_is_not_written(tmp_path):
    class Moody(nn.Module):
        def forward(self, x):
            return x + torch.rand(1)

    (tmp_path / "model.pt2").write_text("the old one")
    with pytest.raises(tl.SurgeryError, match="differs from the model by"):
        tl.export.to_program(Moody(), tmp_path / "model.pt2", torch.randn(4, 2))
    assert (tmp_path / "model.pt2").read_text() == "the old one"
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt2"]


def test_onnx_needs_its_packages(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(tl.SurgeryError, match=r"Install it: pip install 'torchleap\[onnx\]'"):
        tl.export.to_onnx(nn.Linear(2, 1), tmp_path / "model.onnx", torch.randn(4, 2))
