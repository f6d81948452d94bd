"""torch.export and ONNX compute what the model does, for any number of rows."""

import sys
from typing import NamedTuple

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


class Histories(nn.Module):
    """Two histories, one with a mask, an argument that nothing reads, and several outputs."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 4)
        self.bag = nn.EmbeddingBag(20, 4, mode="mean", padding_idx=0)
        self.query = nn.Linear(4, 4)
        self.join = nn.Identity()
        self.head = nn.Linear(16, 2)

    def forward(self, batch, price, unused=None):
        clicks = self.table(batch["clicks"])
        scores = (clicks @ self.query(self.table(batch["item"])).unsqueeze(-1)).squeeze(-1)
        weights = scores.masked_fill(batch["mask"] == 0, -1e9).softmax(1)
        pooled = (clicks * weights.unsqueeze(-1)).sum(1)
        tags = self.bag(batch["tags"])
        x = self.join(torch.cat([pooled, tags, self.table(batch["item"]), price], 1))
        return {"score": torch.sigmoid(self.head(x)[:, 0]), "parts": (x, self.head(x))}


def histories(rows, lengths=(5, 6), seed=0):
    rng = torch.Generator().manual_seed(seed)
    batch = {
        "item": torch.randint(20, (rows,), generator=rng),
        "clicks": torch.randint(20, (rows, lengths[0]), generator=rng),
        "mask": (torch.rand(rows, lengths[0], generator=rng) < 0.8).long(),
        "tags": torch.randint(20, (rows, lengths[1]), generator=rng),
    }
    return batch, torch.randn(rows, 4, generator=rng)


FIELDS = {"clicks": 4, "tags": 4, "item": 4, "price": 4}


def without(dropped):
    torch.manual_seed(0)
    model = Histories()
    plugin = tl.attach(model, FIELDS, at="join")
    for seed in range(2):
        model(*histories(16, seed=seed))
    kept = tuple(name != dropped for name in FIELDS)
    return plugin.prune(tl.Selection(plugin.fields, (0.5,) * 4, kept)).eval()


def dims_of(session):
    return {entry.name: entry.shape for entry in session.get_inputs()}


def ran(session, batch, price):
    given = {"price": price, **batch}
    read = {entry.name for entry in session.get_inputs()}
    outputs = session.run(None, {name: given[name].numpy() for name in read})
    return {entry.name: found for entry, found in zip(session.get_outputs(), outputs, strict=True)}


@pytest.mark.parametrize("dropped", ["price", "tags", "clicks"])
def test_onnx_has_the_names_of_the_model_and_any_length(dropped, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    small = without(dropped)
    tl.export.to_onnx(small, tmp_path / "model.onnx", histories(8))
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    expected = {
        "item": ["batch"],
        "clicks": ["batch", "clicks_length"],
        "mask": ["batch", "clicks_length"],
        "tags": ["batch", "tags_length"],
        "price": ["batch", 4],
    }
    gone = {"clicks": {"clicks", "mask"}}.get(dropped, {dropped})
    assert dims_of(session) == {key: dims for key, dims in expected.items() if key not in gone}
    assert [entry.name for entry in session.get_outputs()] == ["score", "parts.0", "parts.1"]
    for rows, lengths in [(8, (5, 6)), (3, (2, 9)), (1, (11, 1)), (20, (1, 3))]:
        batch, price = histories(rows, lengths, seed=rows)
        found = ran(session, batch, price)
        with torch.no_grad():
            output = small(batch, price)
        np.testing.assert_allclose(found["score"], output["score"], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found["parts.1"], output["parts"][1], rtol=1e-4, atol=1e-5)


def test_a_program_takes_any_length(tmp_path):
    small = without("price")
    tl.export.to_program(small, tmp_path / "model.pt2", histories(8))
    program = torch.export.load(tmp_path / "model.pt2").module()
    for rows, lengths in [(8, (5, 6)), (3, (2, 9)), (20, (11, 3))]:
        batch, price = histories(rows, lengths, seed=rows)
        torch.testing.assert_close(program(batch, price), small(batch, price))


def test_a_length_that_must_stay_stays(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")

    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(20, 4)
            self.weights = nn.Parameter(torch.rand(5))

        def forward(self, hist):
            return (self.table(hist) * self.weights[:, None]).sum((1, 2))

    model = Positions().eval()
    tl.export.to_onnx(model, tmp_path / "model.onnx", torch.randint(20, (8, 5)))
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert dims_of(session) == {"hist": ["batch", 5]}
    assert [entry.name for entry in session.get_outputs()] == ["output"]


class Pair(NamedTuple):
    click: torch.Tensor
    buy: torch.Tensor


class Nested(nn.Module):
    def forward(self, left, right, others):
        total = left["x"] + right["x"] + others[0] * others[1] + left["deep"]["y"]
        return Pair(total, total.sigmoid()), [total * 2, total * 3]


def test_names_that_several_arguments_have_are_told_apart(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    x = torch.randn(6, 2)
    batch = ({"x": x, "deep": {"y": x + 1}}, {"x": x}, [x - 1, x])
    tl.export.to_onnx(Nested(), tmp_path / "model.onnx", batch)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    names = ["left.x", "deep.y", "right.x", "others.0", "others.1"]
    assert [entry.name for entry in session.get_inputs()] == names
    outputs = ["output_0_click", "output_0_buy", "output_1_0", "output_1_1"]
    assert [entry.name for entry in session.get_outputs()] == outputs


def test_an_output_never_has_the_name_of_an_input(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")

    class Same(nn.Module):
        def forward(self, batch):
            return {"x": batch["x"] + batch["add"], "mul": batch["x"] * 2}

    batch = {"x": torch.randn(6, 2), "add": torch.randn(6, 2)}
    tl.export.to_onnx(Same(), tmp_path / "model.onnx", batch)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert [entry.name for entry in session.get_inputs()] == ["x", "add"]
    assert [entry.name for entry in session.get_outputs()] == ["x_output", "mul"]
    found, _ = session.run(None, {name: value.numpy() for name, value in batch.items()})
    np.testing.assert_allclose(found, batch["x"] + batch["add"])


def test_ids_outside_the_rows_of_their_field_are_refused_by_all_but_exported_programs(tmp_path):
    _, plugin, make = attached("deepfm")
    small = plugin.prune(plugin.select(share=0.6)).eval()
    assert tl.export.save(small, tmp_path / "small").loads_without_code
    loaded = tl.export.load(tmp_path / "small")
    batch = make(rows=7)
    torch.testing.assert_close(loaded(batch), small(batch))
    compiled = torch.compile(small, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(batch), small(batch))
    tl.export.to_program(small, tmp_path / "model.pt2", batch)
    batch[:, 4] = -1
    with pytest.raises(tl.FieldError, match="rows of its own field"):
        loaded(batch)
    with pytest.raises(RuntimeError, match="rows of its own field"):
        compiled(batch)
    torch._dynamo.reset()
    torch.export.load(tmp_path / "model.pt2").module()(batch)
