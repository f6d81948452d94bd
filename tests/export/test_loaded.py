"""A loaded model computes what the saved one did, without its code."""

import copy
import inspect
import pickle
import weakref
from typing import NamedTuple

import pytest
import torch
from torch import nn

import torchleap as tl
from tests.architectures import ARCHITECTURES, attached
from tests.export.poolings import CASES, batch_of
from tests.export.test_poolings import pruned as pruned_pooling
from torchleap.export.files import shortened

DESCRIBED = [name for name in ARCHITECTURES if name != "transformer"]


@pytest.mark.parametrize("name", DESCRIBED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_loaded_model_computes_the_same_without_the_users_code(name, dtype, tmp_path):
    _, plugin, make = attached(name, dtype)
    small = plugin.prune(plugin.select(share=0.6)).eval()
    tl.export.save(small, tmp_path / "model")
    again = tl.export.load(tmp_path / "model")
    assert not isinstance(again, ARCHITECTURES[name][0])
    assert not again.training
    for rows in (32, 1, 5):
        batch = make(rows=rows, seed=rows)
        assert torch.equal(again(batch), small(batch))


def test_a_loaded_model_is_trained_copied_and_saved_again(pruned, tmp_path):
    small, make = pruned
    small.wide.weight.requires_grad_(False)
    tl.export.save(small, tmp_path / "model")
    again = copy.deepcopy(tl.export.load(tmp_path / "model"))
    again.train()(make(seed=1)).sum().backward()
    trained = {name for name, parameter in again.named_parameters() if parameter.grad is not None}
    assert trained == {
        name for name, parameter in small.named_parameters() if parameter.requires_grad
    }
    with torch.no_grad():
        again.deep.get_submodule("0").bias.add_(1)
    tl.export.save(again, tmp_path / "tuned", metrics={"auc": 0.9})
    assert torch.equal(tl.export.load(tmp_path / "tuned")(make(seed=2)), again.eval()(make(seed=2)))
    first, second = tl.export.manifest(tmp_path / "model"), tl.export.manifest(tmp_path / "tuned")
    assert first["fields"] == second["fields"]
    assert second["metrics"] == {"auc": 0.9}


@pytest.mark.parametrize("name", ["wide_deep", "functional"])
def test_a_loaded_model_does_all_that_a_pruned_one_does(name, tmp_path):
    _, plugin, make = attached(name)
    small = plugin.prune(plugin.select(share=0.6)).eval()
    loaded = reloaded(small, tmp_path / "model")
    batch = make(rows=9, seed=4)
    (argument,) = inspect.signature(small.forward).parameters
    assert list(inspect.signature(loaded.forward).parameters) == [argument]
    assert torch.equal(loaded(**{argument: batch}), small(batch))
    for other in (
        copy.deepcopy(loaded),
        pickle.loads(pickle.dumps(loaded)),
        torch.compile(loaded, backend="eager"),
    ):
        torch.testing.assert_close(other(batch), small(batch))
    copied = copy.deepcopy(loaded).double()
    assert {
        tensor.dtype for tensor in copied.state_dict().values() if tensor.is_floating_point()
    } == {torch.float64}
    assert {
        tensor.dtype for tensor in loaded.state_dict().values() if tensor.is_floating_point()
    } == {torch.float32}
    tl.export.to_program(loaded, tmp_path / "model.pt2", make(seed=1))
    program = torch.export.load(tmp_path / "model.pt2").module()
    torch.testing.assert_close(program(batch), small(batch))
    with pytest.raises(TypeError, match="too many|multiple values"):
        loaded(batch, batch, nonsense=batch)


def test_a_loaded_model_is_written_as_onnx(pruned, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    small, make = pruned
    tl.export.to_onnx(reloaded(small, tmp_path / "model"), tmp_path / "model.onnx", make(seed=1))
    assert onnxruntime.InferenceSession(tmp_path / "model.onnx").get_inputs()


def test_a_loaded_model_asks_for_its_mode(tmp_path):
    class Moody(nn.Module):
        def __init__(self):
            super().__init__()
            self.join = nn.Identity()
            self.head = nn.Linear(20, 2)

        def forward(self, x):
            dropped = nn.functional.dropout(self.join(x), 0.5, self.training)
            return {"score": self.head(dropped), "both": [dropped[:, 1:3], 2.0]}

    small = gated(Moody(), lambda r, s: torch.randn(r, 20), dict.fromkeys("abcde", 4))
    loaded = reloaded(small, tmp_path / "model")
    x = torch.randn(7, 20)
    assert torch.equal(loaded(x)["score"], small(x)["score"])
    assert torch.equal(loaded(x)["both"][0], small(x)["both"][0])
    torch.manual_seed(1)
    expected = small.train()(x)["score"]
    torch.manual_seed(1)
    assert torch.equal(loaded.train()(x)["score"], expected)


def test_a_loaded_model_is_pruned_and_saved_again(pruned, tmp_path):
    loaded = reloaded(pruned[0], tmp_path / "model")
    make = pruned[1]
    plugin = tl.attach(loaded, {"a": 4, "b": loaded.wide.in_features - 4}, at="wide")
    for seed in range(3):
        loaded.train()(make(seed=seed))
    again = plugin.prune(tl.Selection(plugin.fields, (1.0, 0.0), (True, False))).eval()
    assert again.wide.in_features == 4
    assert torch.equal(reloaded(again, tmp_path / "again")(make(seed=5)), again(make(seed=5)))


def test_a_model_with_a_call_of_its_own_needs_its_code(tmp_path):
    class Doubled(nn.Module):
        def __init__(self):
            super().__init__()
            self.join = nn.Identity()
            self.head = nn.Linear(20, 1)

        def __call__(self, x):
            return super().__call__(x) * 2

        def forward(self, x):
            return self.head(self.join(x))

    small = gated(Doubled(), lambda r, s: torch.randn(r, 20), dict.fromkeys("abcde", 4))
    refused(small, tmp_path / "model", r"a __call__\(\) of its own")


def test_a_loaded_model_frees_what_no_later_step_reads(pruned, tmp_path):
    loaded = reloaded(pruned[0], tmp_path / "model")
    seen, alive = [], []
    loaded.deep.get_submodule("0").register_forward_hook(
        lambda _, __, output: seen.append(weakref.ref(output))
    )
    *_, last = loaded.deep.children()
    last.register_forward_pre_hook(lambda *_: alive.append(seen[0]() is not None))
    with torch.no_grad():
        loaded(pruned[1](seed=1))
    assert alive == [False]


def gated(model, make, fields, at="join", side="output"):
    plugin = tl.attach(model, fields, at=at, side=side)
    for step in range(3):
        model.train()(make(16, step))
    with torch.no_grad():
        plugin.gates.theta.copy_(torch.linspace(-0.3, 1.0, len(plugin.gates.theta)))
    return plugin.prune(plugin.select(share=0.6)).eval()


def refused(small, folder, reason):
    """Save a model that needs its code: `save` and `load` say what is in the way."""
    with pytest.warns(UserWarning, match=f"cannot be loaded without .* because of {reason}"):
        saved = tl.export.save(small, folder)
    assert not saved.loads_without_code
    with pytest.raises(tl.SurgeryError, match=f"without its code, because of {reason}"):
        tl.export.load(folder)
    return saved


def reloaded(small, folder):
    tl.export.save(small, folder)
    return tl.export.load(folder)


class Offsets(nn.Module):
    """Tensors that state_dict() does not hold."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(60, 4)
        self.register_buffer("offsets", torch.arange(5) * 12, persistent=False)
        self.scale = torch.rand(20)
        self.join = nn.Linear(20, 1)

    def forward(self, x):
        return self.join(self.table(x + self.offsets).flatten(1) * self.scale)


def test_tensors_that_are_no_state_are_saved_too(tmp_path):
    small = gated(
        Offsets(), lambda r, s: torch.randint(12, (r, 5)), dict.fromkeys("abcde", 4), side="input"
    )
    x = torch.randint(12, (7, 5))
    assert torch.equal(reloaded(small, tmp_path / "model")(x), small(x))
    assert tl.export.load(tmp_path / "model", small) is small


class Named(nn.Module):
    def __init__(self, names):
        super().__init__()
        self.tables = nn.ModuleDict({name: nn.Embedding(12, 4) for name in names})
        self.join = nn.Identity()
        self.head = nn.Linear(4 * len(names), 1)

    def forward(self, batch):
        return self.head(
            self.join(torch.cat([table(batch[name]) for name, table in self.tables.items()], 1))
        )


@pytest.mark.parametrize("names", [("user-id", "größe", "x y", "c/d"), ("a", "b", "c(1)", "d{2}")])
def test_layers_may_have_any_name(names, tmp_path):
    def make(rows, seed):
        return {
            name: torch.randint(12, (rows,), generator=torch.Generator().manual_seed(seed))
            for name in names
        }

    small = gated(Named(names), make, dict.fromkeys(names, 4))
    if "c(1)" in names:  # what might be code is not written into any
        refused(small, tmp_path / "model", "the name")
    else:
        assert torch.equal(reloaded(small, tmp_path / "model")(make(7, 9)), small(make(7, 9)))


class Hooked(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.join = nn.Identity()
        self.first = nn.Linear(20, 6)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(6, 1)
        change(self)

    def forward(self, x):
        return self.head(self.relu(self.first(self.join(x))))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda model: nn.utils.spectral_norm(model.first), "the hooks on the layer Linear"),
        (
            lambda model: model.relu.register_forward_hook(lambda *call: call[2] * 2),
            "the hooks on the layer ReLU",
        ),
        (
            lambda model: model.register_forward_hook(lambda *call: call[2] * 2),
            "the hooks on the model",
        ),
    ],
)
def test_hooks_need_their_code(change, reason, tmp_path):
    small = gated(Hooked(change), lambda r, s: torch.randn(r, 20), dict.fromkeys("abcde", 4))
    refused(small, tmp_path / "model", reason)


def test_layers_that_worked_in_place_compute_the_same_when_loaded(tmp_path):
    small = gated(
        Hooked(lambda model: None), lambda r, s: torch.randn(r, 20), dict.fromkeys("abcde", 4)
    )
    assert not small.relu.inplace
    x = torch.randn(7, 20)
    assert torch.equal(reloaded(small, tmp_path / "model")(x), small(x))


class Point(NamedTuple):
    ids: torch.Tensor
    mask: torch.Tensor


class OfParts(nn.Module):
    """It reads the parts of a named tuple, and attributes of tensors."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(12, 4)
        self.join = nn.Identity()
        self.head = nn.Linear(20, 3)

    def forward(self, batch):
        x = self.join(self.table(batch.ids).flatten(1))
        known = torch.zeros(3, 3, device=torch.device("cpu")) + torch.eye(3)
        best = (self.head(x) @ known.T).masked_fill(~batch.mask, -1.0).max(dim=1)
        return {"score": best.values, "class": best.indices}


def test_parts_of_a_batch_and_attributes_of_tensors_are_read(tmp_path):
    def make(rows, seed):
        rng = torch.Generator().manual_seed(seed)
        mask = torch.rand(rows, 3, generator=rng) < 0.7
        return Point(torch.randint(12, (rows, 5), generator=rng), mask)

    small = gated(OfParts(), make, dict.fromkeys("abcde", 4))
    loaded = reloaded(small, tmp_path / "model")
    for rows in (1, 6):
        batch = make(rows, 3)
        found, expected = loaded(batch), small(batch)
        assert torch.equal(found["score"], expected["score"])
        assert torch.equal(found["class"], expected["class"])


def test_a_device_in_the_graph_is_that_of_the_weights(tmp_path):
    class Placed(nn.Module):
        def __init__(self):
            super().__init__()
            self.join = nn.Identity()
            self.head = nn.Linear(20, 3)

        def forward(self, x):
            x = self.join(x).to(torch.device("cpu"))
            return self.head(x) + torch.arange(3, device=x.device)

    small = gated(Placed(), lambda r, s: torch.randn(r, 20), dict.fromkeys("abcde", 4))
    loaded = reloaded(small, tmp_path / "model")
    x = torch.randn(4, 20)
    assert torch.equal(loaded(x), small(x))
    graph = tl.export.manifest(tmp_path / "model")["graph"]
    assert {"device": "weights"} in [value for node in graph["nodes"] for value in node[3]["tuple"]]
    for node in type(small).pruned_graph.nodes:
        node.args = tuple(
            torch.device("meta") if isinstance(arg, torch.device) else arg for arg in node.args
        )
    refused(small, tmp_path / "meta", r"a device \(meta\) as an argument of the method to\(\)")


class Own(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Unlisted(nn.Module):
    def __init__(self):
        super().__init__()
        self.join = nn.Identity()
        self.head = nn.Linear(20, 6)
        self.own = Own()

    def forward(self, x):
        x = self.own(self.head(self.join(x)))
        return torch.kthvalue(x, 2, dim=1)[0] + x.erfinv().nan_to_num()[:, 0]


def test_everything_that_is_in_the_way_is_named(tmp_path):
    small = gated(Unlisted(), lambda r, s: torch.randn(r, 20), dict.fromkeys("abcde", 4))
    saved = refused(small, tmp_path / "model", "the layer Own at 'own'")
    assert saved.in_the_way == (
        "the layer Own at 'own'",
        "the function kthvalue()",
        "the method erfinv()",
    )
    assert saved.path == tmp_path / "model"
    assert "'own', the function kthvalue() and the method erfinv(). Load it with" in str(saved)
    assert tl.export.manifest(tmp_path / "model")["needs_code"] == list(saved.in_the_way)


def test_a_saved_model_that_needs_no_code_says_so(pruned, tmp_path, recwarn):
    saved = tl.export.save(pruned[0], str(tmp_path / "model"))
    assert saved == tl.export.Saved(tmp_path / "model", True, ())
    assert str(saved) == f"{tmp_path / 'model'} can be loaded without the model's code."
    assert not recwarn.list


def test_a_long_list_is_shortened():
    assert shortened(["a"]) == "a"
    assert shortened(["a", "b"]) == "a and b"
    assert shortened(list("abcdefgh")) == "a, b, c, d, e and 3 more"


def test_a_model_with_sizes_from_its_batch_is_pruned_again(tmp_path):
    small, _ = pruned_pooling(CASES["DIN"])
    loaded = reloaded(small, tmp_path / "model")
    plugin = tl.attach(loaded, {"item": 8, "hist": 8}, at="head")
    for seed in range(2):
        loaded.train()(batch_of(16, 5, seed))
    selection = tl.Selection(plugin.fields, (0.2, 0.9), (False, True))
    again = plugin.prune(selection, example=batch_of(8, 5, 1)).eval()
    batch = batch_of(5, 7, 3)
    expected = again(batch)
    assert torch.equal(reloaded(again, tmp_path / "again")(batch), expected)
    with plugin.masked(selection):
        torch.testing.assert_close(loaded.eval()(batch), expected)
