"""save and load: bit for bit the same model, no code, and nothing half written."""

import errno
import json
import os

import pytest
import torch
from torch import nn

import torchleap as tl
from tests.architectures import attached
from torchleap.export import files


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
    for content in ("[]", "{}", '{"format": 1}', '{"format": 99}', '{"format": true}'):
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
