"""save and load: bit for bit the same model, no code, and nothing half written."""

import copy
import errno
import inspect
import json
import os
import pickle
import weakref

import pytest
import torch
from torch import nn

import torchleap as tl
from tests.architectures import ARCHITECTURES, attached
from torchleap.export import files

DESCRIBED = [name for name in ARCHITECTURES if name != "transformer"]


@pytest.fixture
def pruned():
    _, plugin, make = attached("wide_deep")
    return plugin.prune(plugin.select(share=0.6)).eval(), make


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
    tl.export.save(small, tmp_path / "model")
    with pytest.raises(
        tl.SurgeryError,
        match="cannot be loaded without its code, because of a __call__\\(\\) of its own",
    ):
        tl.export.load(tmp_path / "model")


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


def test_the_weights_can_be_read_by_whoever_can_read_the_manifest(pruned, tmp_path):
    for mask in (0o022, 0o027):
        before = os.umask(mask)
        try:
            tl.export.save(pruned[0], tmp_path / "model")
        finally:
            os.umask(before)
        modes = {file.stat().st_mode & 0o777 for file in (tmp_path / "model").iterdir()}
        assert modes == {0o666 & ~mask}


def test_the_manifest_says_what_the_data_team_needs(pruned, tmp_path):
    small, _ = pruned
    tl.export.save(small, tmp_path / "model", metrics={"auc_before": 0.81, "auc_after": 0.8})
    content = tl.export.manifest(tmp_path / "model")
    assert content["no_longer_read"] == [
        {"name": "user", "columns": None},
        {"name": "item", "columns": None},
    ]
    assert [record["name"] for record in content["fields"] if not record["kept"]] == [
        "user",
        "item",
    ]
    dropped = content["fields"][0]
    assert dropped["width"] == len(dropped["mean"]) == 4
    assert 0 < dropped["score"] < 0.5
    assert content["metrics"] == {"auc_before": 0.81, "auc_after": 0.8}
    assert set(content["versions"]) == {"torchleap", "torch"}
    assert content["model"] == "WideAndDeep"
    assert content["cuts"][0] == {
        "layer": "tables.user",
        "before": "Embedding(12, 4)",
        "after": "removed",
        "parameters": -48,
    }


def test_a_model_that_json_cannot_describe_is_loaded_into_a_pruned_one(tmp_path):
    _, plugin, make = attached("transformer")
    selection = plugin.select(share=0.6)
    small = plugin.prune(selection).eval()
    tl.export.save(small, tmp_path / "model")
    with pytest.raises(tl.SurgeryError, match="because of the layer TransformerEncoder"):
        tl.export.load(tmp_path / "model")
    other = plugin.prune(selection)
    for parameter in other.parameters():
        parameter.data.zero_()
    again = tl.export.load(tmp_path / "model", other)
    assert again is other
    assert torch.equal(again(make(seed=3)), small(make(seed=3)))
    with pytest.raises(tl.SurgeryError, match="holds another model: "):
        tl.export.load(tmp_path / "model", plugin.prune(plugin.select(share=0.8)))


def test_tied_weights_stay_tied(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.join = nn.Identity()
            self.one = nn.Linear(20, 5)
            self.two = nn.Linear(20, 5)
            self.two.weight = self.one.weight

        def forward(self, x):
            return self.one(self.join(x)) * self.two(x)

    model = Tied()
    plugin = tl.attach(model, {"a": 10, "b": 10}, at="join", side="output")
    for _ in range(2):
        model(torch.randn(8, 20))
    small = plugin.prune(tl.Selection(plugin.fields, (1.0, 0.0), (True, False))).eval()
    tl.export.save(small, tmp_path / "model")
    again = tl.export.load(tmp_path / "model")
    x = torch.randn(3, 20)
    assert torch.equal(again(x), small(x))


def test_a_folder_is_replaced_as_a_whole(pruned, tmp_path):
    small, make = pruned
    tl.export.save(small, tmp_path / "model")
    with torch.no_grad():
        small.deep[0].bias.add_(1)
    tl.export.save(small, tmp_path / "model")
    assert torch.equal(tl.export.load(tmp_path / "model")(make()), small(make()))
    assert sorted(path.name for path in (tmp_path).iterdir()) == ["model"]
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "manifest.json",
        "model.safetensors",
    ]


def test_a_failed_save_leaves_the_old_folder_and_nothing_else(pruned, tmp_path, monkeypatch):
    small, make = pruned
    tl.export.save(small, tmp_path / "model")
    expected = small(make())

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("torchleap.export.files.save_file", fail)
    with torch.no_grad():
        small.deep[0].bias.add_(1)
    with pytest.raises(
        tl.WriteError, match=r"model cannot be written: No space left on device; make room"
    ):
        tl.export.save(small, tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert torch.equal(tl.export.load(tmp_path / "model")(make()), expected)


def test_a_folder_of_other_things_is_not_replaced(pruned, tmp_path):
    small, _ = pruned
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("...")
    (tmp_path / "file").write_text("...")
    for name in ("thesis", "file"):
        with pytest.raises(tl.SurgeryError, match="is not a saved model, so it is not replaced"):
            tl.export.save(small, tmp_path / name)
    assert sorted(path.name for path in (tmp_path).iterdir()) == ["file", "thesis"]


def test_what_was_not_pruned_is_not_saved(tmp_path):
    with pytest.raises(tl.SurgeryError, match="Expected a model that plugin.prune"):
        tl.export.save(nn.Linear(2, 2), tmp_path / "model")
    _, plugin, _ = attached("mlp")
    with pytest.raises(tl.SurgeryError, match="Expected metrics as finite numbers"):
        tl.export.save(
            plugin.prune(plugin.select(share=0.6)),
            tmp_path / "model",
            metrics={"auc": float("nan")},
        )
    assert not list(tmp_path.iterdir())


def damage(folder, **changes):
    """Change a manifest as somebody would who knows about its digest."""
    path = folder / "manifest.json"
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(content | {"sha256": files._digest_of(content)}))


def test_damaged_files_are_refused(pruned, tmp_path):
    small, _ = pruned
    folder = tmp_path / "model"
    tl.export.save(small, folder)
    weights, text = (
        (folder / "model.safetensors").read_bytes(),
        (folder / "manifest.json").read_text(),
    )
    (folder / "model.safetensors").write_bytes(weights[:-7])
    with pytest.raises(tl.SurgeryError, match="is damaged: expected [0-9,]+ bytes, but found"):
        tl.export.load(folder)
    (folder / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    with pytest.raises(tl.SurgeryError, match="its content is not that of the manifest"):
        tl.export.load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(tl.SurgeryError, match="is missing"):
        tl.export.load(folder)
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "manifest.json").write_text(text[: len(text) // 2])
    with pytest.raises(tl.SurgeryError, match="is not a manifest: expected JSON"):
        tl.export.load(folder)
    for content in ("[]", "{}", '{"format": 99}', '{"format": true}'):
        (folder / "manifest.json").write_text(content)
        with pytest.raises(tl.SurgeryError, match="expected a manifest of format 2, but found"):
            tl.export.load(folder)
    (folder / "manifest.json").write_text('{"format": 2}')
    with pytest.raises(tl.SurgeryError, match="is missing"):
        tl.export.load(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(tl.SurgeryError, match="holds no pruned model"):
        tl.export.load(folder)


def test_a_changed_digit_in_the_manifest_is_noticed(tmp_path):
    _, plugin, _ = attached("wide_deep")
    tl.export.save(plugin.prune(plugin.select(share=0.6)), tmp_path / "model")
    path = tmp_path / "model" / "manifest.json"
    path.write_text(path.read_text().replace('"eps": 1e-05', '"eps": 1e+05'))
    with pytest.raises(tl.SurgeryError, match="its content is not what was written"):
        tl.export.load(tmp_path / "model")


@pytest.mark.parametrize("content", ["[" * 100_000, "", "null", "\x00"])
def test_what_is_no_manifest_is_refused(content, pruned, tmp_path):
    tl.export.save(pruned[0], tmp_path / "model")
    (tmp_path / "model" / "manifest.json").write_text(content)
    with pytest.raises(tl.SurgeryError):
        tl.export.load(tmp_path / "model")


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "model").write_text("")
    with pytest.raises(tl.SurgeryError, match="holds no pruned model"):
        tl.export.load(tmp_path / "model")


def test_the_folders_above_are_made(pruned, tmp_path):
    tl.export.save(pruned[0], tmp_path / "models" / "today" / "small")
    assert tl.export.manifest(tmp_path / "models" / "today" / "small")["model"] == "WideAndDeep"


@pytest.mark.parametrize(
    "changes",
    [
        *(
            {"aliases": 3},
            {"aliases": {"x": "nowhere"}},
            {"aliases": {"x": {}}},
            {"weights": 3},
            {"weights": {}},
        ),
        *({"trainable": None}, {"graph": 3}, {"graph": {}}, {"graph": {"nodes": 3, "layers": {}}}),
        {"graph": {"nodes": [], "layers": {}}},
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(changes, pruned, tmp_path):
    tl.export.save(pruned[0], tmp_path / "model")
    damage(tmp_path / "model", **changes)
    with pytest.raises(tl.SurgeryError):
        tl.export.load(tmp_path / "model")


def gated(model, make, fields, at="join", side="output"):
    plugin = tl.attach(model, fields, at=at, side=side)
    for step in range(3):
        model.train()(make(16, step))
    with torch.no_grad():
        plugin.gates.theta.copy_(torch.linspace(-0.3, 1.0, len(plugin.gates.theta)))
    return plugin.prune(plugin.select(share=0.6)).eval()


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
        tl.export.save(small, tmp_path / "model")
        with pytest.raises(tl.SurgeryError, match="because of the name"):
            tl.export.load(tmp_path / "model")
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
    tl.export.save(small, tmp_path / "model")
    with pytest.raises(tl.SurgeryError, match=f"because of {reason}"):
        tl.export.load(tmp_path / "model")


def test_layers_that_worked_in_place_compute_the_same_when_loaded(tmp_path):
    small = gated(
        Hooked(lambda model: None), lambda r, s: torch.randn(r, 20), dict.fromkeys("abcde", 4)
    )
    assert not small.relu.inplace
    x = torch.randn(7, 20)
    assert torch.equal(reloaded(small, tmp_path / "model")(x), small(x))


EVIL = [
    ["x", "call_function", "os.system", {"tuple": ["touch /tmp/evil"]}, {"dict": []}],
    ["x", "call_function", "builtins.eval", {"tuple": ["1"]}, {"dict": []}],
    ["x", "call_method", "__reduce__", {"tuple": [{"node": "batch"}]}, {"dict": []}],
    ["x", "get_attr", "__class__.__init__.__globals__[x]", {"tuple": []}, {"dict": []}],
    ["x", "get_attr", "__class__.__init__", {"tuple": []}, {"dict": []}],
    ["x", "get_attr", 'a b"), print("', {"tuple": []}, {"dict": []}],
    ["x", "call_module", "deep", {"tuple": [{"node": "batch"}]}, {"dict": []}],
    ["x\nimport os", "call_method", "size", {"tuple": [{"node": "batch"}]}, {"dict": []}],
    ["x", "placeholder", "x=__import__('os')", {"tuple": []}, {"dict": []}],
    ["x", "nonsense", "x", {"tuple": []}, {"dict": []}],
    ["x", "call_method", "size", {"evil": 1}, {"dict": []}],
    ["x", "call_method", "size", {"tuple": [{"node": "nowhere"}]}, {"dict": []}],
    ["x", "call_method", "to", {"tuple": [{"node": "batch"}, {"dtype": "nn"}]}, {"dict": []}],
    ["too", "short"],
    17,
]


@pytest.mark.parametrize("node", EVIL, ids=[str(node)[:40] for node in EVIL])
def test_a_manifest_cannot_name_code(node, pruned, tmp_path):
    small, _ = pruned
    tl.export.save(small, tmp_path / "model")
    graph = tl.export.manifest(tmp_path / "model")["graph"]
    graph["nodes"].insert(1, node)
    damage(tmp_path / "model", graph=graph)
    with pytest.raises(tl.SurgeryError):
        tl.export.load(tmp_path / "model")


@pytest.mark.parametrize(
    "layer", [["Module", {}], ["os", {}], [{}, {}], ["Linear", {"in_features": "x"}], 3]
)
def test_a_manifest_cannot_name_other_layers(layer, pruned, tmp_path):
    small, _ = pruned
    tl.export.save(small, tmp_path / "model")
    graph = tl.export.manifest(tmp_path / "model")["graph"]
    graph["layers"]["deep.0"] = layer
    damage(tmp_path / "model", graph=graph)
    with pytest.raises(tl.SurgeryError):
        tl.export.load(tmp_path / "model")
