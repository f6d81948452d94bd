"""Hostile model folders: none runs code, at loading or at a call; each is one SurgeryError."""

import json
import os
import subprocess
import sys

import pytest
import torch
from torch import fx, nn

import torchleap as tl
from tests.architectures import attached
from tests.export.test_rebuild import Deciding, pruned
from tests.hostile.watch import watched
from torchleap._common.sealed import digest_of
from torchleap.export import files


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a good folder with a batch, loaded and called once, so that lazy imports are done."""
    _, plugin, make = attached("wide_deep")
    folder = tmp_path_factory.mktemp("good") / "model"
    tl.export.save(plugin.prune(plugin.select(share=0.6)).eval(), folder)
    batch = make(seed=1)
    tl.export.load(folder)(batch)
    return folder, batch


@pytest.fixture
def copy(saved, tmp_path):
    """A copy of the folder to be spoiled, and what to spoil it with."""
    target = tmp_path / "model"
    target.mkdir()
    for file in saved[0].iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target, saved[1]


def spoil(folder, change):
    """Change a manifest as somebody would who knows about its digest."""
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content | {"sha256": files._digest_of(content)}))


def node(graph, op):
    """The first node of this kind."""
    return next(entry for entry in graph["nodes"] if entry[1] == op)


def keyword(text):
    def change(content):
        node(content["graph"], "call_function")[4] = {"dict": [[text, 1]]}

    return change


def renamed(text):
    """Give the first result of a function this name, wherever it is read."""

    def change(content):
        name = node(content["graph"], "call_function")[0]
        old, new = json.dumps(name), json.dumps(text)
        content["graph"] = json.loads(json.dumps(content["graph"]).replace(old, new))

    return change


def inserted(*entry):
    def change(content):
        content["graph"]["nodes"].insert(1, list(entry))

    return change


def moved(text):
    """Put the first layer at another path."""

    def change(content):
        path = next(iter(content["graph"]["layers"]))
        content["graph"] = json.loads(
            json.dumps(content["graph"]).replace(json.dumps(path), json.dumps(text))
        )

    return change


def layer(kind, settings):
    def change(content):
        content["graph"]["layers"]["deep.0"] = [kind, settings]

    return change


def swapped(content):
    """Let a node read a later one."""
    nodes = content["graph"]["nodes"]
    nodes[1], nodes[-2] = nodes[-2], nodes[1]


def deep(content):
    value: list = []
    for _ in range(400):
        value = [value]
    node(content["graph"], "call_function")[3] = {"tuple": [value]}


def argument(text, default=None):
    def change(content):
        entry = node(content["graph"], "placeholder")
        entry[2] = text
        if default is not None:
            entry[3] = {"tuple": [default]}

    return change


def looking_into(*steps):
    """Let the check of the batch follow these steps, and show in its message what it finds."""
    names = {"tuple": [{"tuple": ["attribute", name]} for name in steps]}
    check = {"tuple": ["x", 0, names, "same", NONE, NONE, 1, True]}
    args = {"tuple": [[{"node": "batch"}], {"tuple": [check]}]}
    return inserted("x", "call_function", "torchleap.expect_inputs", args, EMPTY)


def several(*entries):
    """Insert nodes after the argument, each named by a letter from a on."""

    def change(content):
        for place, (op, target, args, named) in enumerate(entries):
            kwargs = {"dict": [[key, value] for key, value in named.items()]}
            entry = ["abcdefgh"[place], op, target, {"tuple": list(args)}, kwargs]
            content["graph"]["nodes"].insert(1 + place, entry)

    return change


def function(target, *args, **named):
    return ("call_function", target, args, named)


def method(target, *args, **named):
    return ("call_method", target, args, named)


NONE = {"tuple": []}
EMPTY = {"dict": []}
BATCH = {"tuple": [{"node": "batch"}]}
MARK = "open('MARK','w').close()"
HOSTILE = {
    "a keyword that is code": keyword(f"**({MARK} or {{}})) if (_:=1) else dict(x"),
    "a keyword that closes the call": keyword(f"dim=1); {MARK}; (x"),
    "a keyword with a line break": keyword(f"x=1)\n    {MARK}\n    dict(y"),
    "a keyword of Python": keyword("lambda"),
    "a keyword that no function has": keyword("out"),
    "a keyword that is a number": keyword(3),
    "a name that is a keyword": renamed("class"),
    "a name with code": renamed(f"x = {MARK} #"),
    "a dunder name": renamed("__builtins__"),
    "a name twice": inserted("batch", "placeholder", "other", NONE, EMPTY),
    "an argument with code": argument(f"batch={MARK}"),
    "an argument of Python": argument("None"),
    "an argument self": argument("self"),
    "an argument of three stars": argument("***batch"),
    "stars alone": argument("**"),
    "a default that is a node": argument("batch", {"node": "batch"}),
    "a function outside the list": inserted(
        "x", "call_function", "os.system", {"tuple": ["touch MARK"]}, EMPTY
    ),
    "eval": inserted("x", "call_function", "builtins.eval", {"tuple": [MARK]}, EMPTY),
    "the gates' own mark": inserted("x", "call_function", "torchleap.gated", BATCH, EMPTY),
    "torch.load": inserted("x", "call_function", "torch.load", {"tuple": ["MARK"]}, EMPTY),
    "a method outside the list": inserted("x", "call_method", "__reduce_ex__", BATCH, EMPTY),
    "a method of a string": inserted("x", "call_method", "split", {"tuple": ["a b"]}, EMPTY),
    "a method that saves": inserted("x", "call_method", "numpy", BATCH, EMPTY),
    "an attribute of the class": inserted("x", "get_attr", "__class__.__init__", NONE, EMPTY),
    "forward as an attribute": inserted("x", "get_attr", "forward", NONE, EMPTY),
    "_modules as an attribute": inserted("x", "get_attr", "_modules", NONE, EMPTY),
    "an attribute with code": inserted("x", "get_attr", f'a"), {MARK}, ("', NONE, EMPTY),
    "a layer named forward": moved("forward"),
    "a layer named _modules": moved("_modules"),
    "a layer named __class__": moved("__class__"),
    "a layer below __class__": moved("__class__.__init__"),
    "a layer named state_dict": moved("tables.state_dict"),
    "a layer that hides its origin": moved("torchleap_graph"),
    "another layer": layer("Module", {}),
    "a layer of another module": layer("torch.hub.load", {}),
    "a layer with a Tensor's setting": layer(
        "Embedding", {"num_embeddings": 4, "embedding_dim": 4, "_weight": [1.0]}
    ),
    "a layer on another device": layer(
        "Linear", {"in_features": 4, "out_features": 4, "device": "cpu"}
    ),
    "a layer with text for a number": layer("Linear", {"in_features": "4", "out_features": 4}),
    "a layer with a boolean for a number": layer(
        "Linear", {"in_features": True, "out_features": 4}
    ),
    "a layer of no groups": layer("GroupNorm", {"num_groups": 0, "num_channels": 4}),
    "an enormous layer": layer(
        "Linear", {"in_features": 1 << 62, "out_features": 1 << 62, "bias": True}
    ),
    "an identity with arguments": layer("Identity", {"args": [1]}),
    "weights of another shape": layer(
        "Linear", {"in_features": 7, "out_features": 3, "bias": True}
    ),
    "a dtype that is a function": inserted(
        "x", "call_method", "to", {"tuple": [{"node": "batch"}, {"dtype": "load"}]}, EMPTY
    ),
    "a dtype that is a module": inserted(
        "x", "call_method", "to", {"tuple": [{"node": "batch"}, {"dtype": "_dynamo"}]}, EMPTY
    ),
    "a number that is text": inserted(
        "x", "call_method", "to", {"tuple": [{"node": "batch"}, {"float": "1e999x"}]}, EMPTY
    ),
    "an enormous number": inserted(
        "x", "call_method", "size", {"tuple": [{"node": "batch"}, 10**4000]}, EMPTY
    ),
    "a global variable": inserted(
        "x",
        "call_function",
        "torchleap.expect_globals",
        {"tuple": [{"tuple": [{"tuple": ["os", "environ", 1]}]}]},
        EMPTY,
    ),
    "a later node": swapped,
    "itself": inserted("x", "call_method", "size", {"tuple": [{"node": "x"}]}, EMPTY),
    "an unknown kind of value": inserted("x", "call_method", "size", {"eval": MARK}, EMPTY),
    "an unknown operation": inserted("x", "exec", MARK, NONE, EMPTY),
    "a target that is a list": inserted("x", "call_function", ["os", "system"], NONE, EMPTY),
    "an output in the middle": inserted("x", "output", "output", BATCH, EMPTY),
    "no output": lambda content: content["graph"]["nodes"].pop(),
    "lists in lists": deep,
    "aliases that are not text": lambda content: content.update(aliases={"deep.0.weight": ["x"]}),
    "a tensor named like a method": lambda content: content.update(
        aliases={"deep.0.forward": "deep.0.weight"}
    ),
    "a tensor named __dict__": lambda content: content.update(
        aliases={"deep.__dict__": "deep.0.weight"}
    ),
    "a dict with a node as its key": inserted(
        "x", "call_method", "size", {"tuple": [{"dict": [[{"node": "batch"}, 1]]}]}, EMPTY
    ),
}
A = {"node": "a"}
B = {"node": "b"}
ENTRY = function("operator.getitem", {"node": "batch"}, "city")  # a, (B,)
HUGE = 1 << 40
WEIGHT = ("get_attr", "deep.0.weight", (), {})
HOSTILE |= {
    "enormous zeros": several(function("torch.zeros", HUGE)),
    "enormous ones by name": several(function("torch.ones", size=[1 << 20, 1 << 20])),
    "an enormous constant": several(function("torch.full", [HUGE], 1)),
    "an enormous range": several(function("torch.arange", HUGE)),
    "an enormous range by small steps": several(function("torch.arange", 0, 1, 1e-12)),
    "an enormous range by name": several(function("torch.arange", end=HUGE)),
    "enormous spaces": several(function("torch.linspace", 0, 1, HUGE)),
    "an enormous square": several(function("torch.eye", 1 << 20)),
    "enormous new zeros": several(ENTRY, method("new_zeros", A, [HUGE])),
    "an enormous new constant": several(ENTRY, method("new_full", A, {"tuple": [HUGE]}, 1)),
    "enormous repetitions": several(ENTRY, method("repeat", A, 1 << 20, 1 << 20)),
    "enormous tiles": several(ENTRY, function("torch.tile", A, {"tuple": [HUGE]})),
    "each element many times": several(ENTRY, method("repeat_interleave", A, HUGE)),
    "an enormous view": several(ENTRY, method("expand", A, HUGE, -1)),
    "enormous one-hot vectors": several(ENTRY, function("functional.one_hot", A, HUGE)),
    "an enormous margin": several(ENTRY, function("functional.pad", A, {"tuple": [0, HUGE]})),
    "a size that is computed": several(
        function("operator.mul", 1 << 20, 1 << 20), function("torch.zeros", A)
    ),
    "a size that is a tensor": several(function("torch.tensor", HUGE), function("torch.zeros", A)),
    "doubled again and again": several(
        function("torch.zeros", 1 << 26), function("torch.cat", [A, A, A, A])
    ),
    "a number of many digits": several(function("operator.pow", 9, 1 << 40)),
    "a product of many digits": several(function("operator.mul", 1 << 62, 1 << 62)),
    "text many times": several(function("operator.mul", "a", HUGE)),
    "a list many times": several(function("operator.mul", [0], HUGE)),
    "formatted text": several(function("operator.mod", "%1000000000d", 1)),
    "a shape many times": several(ENTRY, method("size", A), function("operator.mul", B, HUGE)),
    "a weight changed in place": several(WEIGHT, function("functional.relu", A, inplace=True)),
    "a weight changed in place, unnamed": several(WEIGHT, function("functional.relu", A, True)),
    "a table rescaled in place": several(
        WEIGHT, ENTRY, function("functional.embedding", B, A, {"node": "a"}, 1.0)
    ),
    "a result written to a weight": several(WEIGHT, function("functional.normalize", A, out=A)),
    "a method of text of the batch": several(
        function("operator.getitem", "some text", 0), method("split", A)
    ),
    "an attribute of Python": several(ENTRY, function("torchleap.attribute", A, "__class__")),
    "an attribute of a tensor": several(ENTRY, function("torchleap.attribute", A, "grad_fn")),
    "a method as an attribute": several(
        function("torchleap.attribute", {"node": "batch"}, "popitem")
    ),
    "an attribute whose name is computed": several(
        ENTRY, function("torchleap.attribute", A, {"node": "a"})
    ),
    "another device": several(function("torch.zeros", 2, device={"device": "cuda:0"})),
    "an activation that works in place": layer("ReLU", {"inplace": True}),
    "a recurrent layer of many layers": layer(
        "GRU", {"input_size": 1, "hidden_size": 1, "num_layers": 1 << 24}
    ),
    "an encoder of many layers": layer(
        "TransformerEncoder",
        {
            "encoder_layer": ["TransformerEncoderLayer", {"d_model": 2, "nhead": 1}],
            "num_layers": 1 << 24,
        },
    ),
    "an encoder of another layer": layer(
        "TransformerEncoder", {"encoder_layer": ["Module", {}], "num_layers": 1}
    ),
    "an encoder without a layer": layer("TransformerEncoder", {"num_layers": 1}),
    "an activation by name": layer(
        "TransformerEncoderLayer", {"d_model": 2, "nhead": 1, "activation": "exec"}
    ),
    "a layer that enlarges its result": layer("AdaptiveMaxPool1d", {"output_size": HUGE >> 10}),
    "a layer with an enormous margin": layer(
        "Conv1d",
        {"in_channels": 1, "out_channels": 1, "kernel_size": 1, "padding": {"tuple": [1 << 30]}},
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_manifest_runs_nothing(name, copy, monkeypatch):
    folder, batch = copy
    monkeypatch.chdir(folder)
    spoil(folder, HOSTILE[name])
    with watched() as seen, pytest.raises(tl.SurgeryError) as problem:
        tl.export.load(folder)(batch)
    assert seen == []
    assert not (folder / "MARK").exists()
    assert "\n" not in str(problem.value)


def test_no_more_of_the_largest_are_returned_than_there_are(copy):
    folder, batch = copy
    spoil(folder, several(ENTRY, method("topk", A, HUGE)))
    with pytest.raises(RuntimeError, match="out of range"):
        tl.export.load(folder)(batch)


def test_the_check_of_a_batch_shows_nothing_of_the_process(copy):
    folder, batch = copy
    spoil(folder, looking_into("__class__", "__init__", "__objclass__"))
    with pytest.raises(tl.FieldError, match="but found nothing"):
        tl.export.load(folder)(batch)


BAGS = {
    "ids above the table": ([3, 1 << 40], [0, 1], {}),
    "ids below 0": ([3, -7], [0], {"max_norm": 1.0}),
    "offsets beyond the ids": ([3, 1], [0, 1 << 40, 1], {}),
    "offsets below 0": ([3, 1], [0, -(1 << 40), 1], {}),
    "offsets that begin later": ([3, 1], [1, 2], {}),
    "an end, but no beginning": ([3, 1, 2], [0], {"include_last_offset": True, "padding_idx": 0}),
}


@pytest.mark.parametrize("step", ["grad_fn", "_base", "__class__", "numpy"])
def test_steps_into_a_batch_lead_to_no_attributes_of_tensors(step, copy):
    folder, batch = copy
    steps = {"tuple": [{"tuple": ["attribute", step]}]}
    spoil(folder, several(ENTRY, function("torchleap.walk", A, steps)))
    with pytest.raises(AttributeError, match=step):
        tl.export.load(folder)(batch)


@pytest.mark.parametrize("name", BAGS)
def test_a_model_with_a_bag_cannot_reach_beyond_its_table(name, copy):
    folder, _ = copy
    ids, offsets, settings = BAGS[name]

    def change(content):
        graph = content["graph"]
        graph["layers"]["tables.city"] = [
            "EmbeddingBag",
            {"num_embeddings": 12, "embedding_dim": 4, "mode": "sum", **settings},
        ]
        graph["nodes"] = [
            ["ids", "placeholder", "ids", NONE, EMPTY],
            ["offsets", "placeholder", "offsets", NONE, EMPTY],
            [
                "x",
                "call_module",
                "tables.city",
                {"tuple": [{"node": "ids"}, {"node": "offsets"}]},
                EMPTY,
            ],
            ["output", "output", "output", {"tuple": [{"node": "x"}]}, EMPTY],
        ]

    spoil(folder, change)
    model = tl.export.load(folder)
    assert model(torch.tensor([3, 1]), torch.tensor([0, 2])).shape[1] == 4
    with pytest.raises(tl.FieldError, match="Expected (ids|offsets)"):
        model(torch.tensor(ids), torch.tensor(offsets))


def test_a_model_with_code_in_its_name_is_only_called_so(copy, monkeypatch):
    folder, batch = copy
    monkeypatch.chdir(folder)
    spoil(folder, lambda content: content.update(model=f"X(nn.Module): {MARK}\nclass Y"))
    with watched() as seen:
        model = tl.export.load(folder)
        model(batch)
    assert type(model).__name__ == "Pruned"
    assert (seen, (folder / "MARK").exists()) == ([], False)


def test_a_good_folder_is_loaded_and_called_without_compiling_anything(copy):
    folder, batch = copy
    with watched() as seen:
        model = tl.export.load(folder)
        model(batch)
        model(batch=batch)
    assert seen == []
    assert not isinstance(model, fx.GraphModule)


def test_the_watch_sees_what_a_hostile_file_could_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    graph = fx.Graph()
    x = graph.placeholder("x")
    total = graph.call_function(torch.sum, (x,), {f"**({MARK} or {{}})) if (_:=1) else dict(x": 1})
    graph.output(total)
    with watched() as seen:
        fx.GraphModule(nn.Module(), graph)(torch.ones(2))  # what load() did before
    assert (tmp_path / "MARK").exists()
    assert any(event.startswith("compile") for event in seen)
    assert any(event.startswith("open") and "MARK" in event for event in seen)
    with watched() as seen:
        os.system("true")
    assert any(event.startswith("os.system") for event in seen)
    with watched() as seen:
        subprocess.run([sys.executable, "-c", ""], check=True)
    assert any(event.startswith("subprocess.Popen") for event in seen)
    with watched(tmp_path) as seen:
        (tmp_path / "allowed").write_text("")
    assert seen == []


REBUILD = {
    "a site that is an attribute": {
        "sites": [{"at": "__class__", "side": "input", "widths": None}]
    },
    "a site that is no name": {"sites": [{"at": ["first"], "side": "input", "widths": None}]},
    "an unknown side": {"sites": [{"at": "join", "side": "exec", "widths": None}]},
    "no sites": {"sites": []},
    "a site with other entries": {"sites": [{"at": "join", "eval": MARK, "widths": None}]},
    "enormous widths": {"sites": [{"at": "join", "side": "output", "widths": [["user", 1 << 40]]}]},
    "enormous fields": {"fields": [{"name": "user", "width": 1 << 40}]},
    "fields that are text": {"fields": "user"},
    "an unknown setting": {"settings": {"__class__": 1}},
    "a setting of another type": {"settings": {"temperature": "exec"}},
    "a batch of another kind": {"batch": {"eval": [MARK]}},
    "a batch of tensors that are absent": {"batch": [[{"tensor": 99}], {"dict": []}]},
    "a batch that is deep": {"batch": json.loads("[" * 50 + "]" * 50)},
    "gates in the place of the batch": {"batch": [[{"tensor": -1}], {"dict": []}]},
    "a file of another digest": {"file": {"bytes": 3, "sha256": ""}},
}


@pytest.mark.parametrize("name", REBUILD)
def test_a_hostile_folder_makes_a_model_of_code_run_nothing_else(name, tmp_path, monkeypatch):
    small, _, _ = pruned("deciding")
    folder = tmp_path / "model"
    with pytest.warns(UserWarning, match="cannot be loaded without"):
        tl.export.save(small, folder)
    monkeypatch.chdir(folder)
    spoil(folder, lambda content: content["rebuild"].update(REBUILD[name]))
    with watched(code=False) as seen, pytest.raises(tl.TorchleapError):
        tl.export.load(folder, Deciding())
    assert seen == []
    assert not (folder / "MARK").exists()


@pytest.mark.parametrize("file", ["manifest.json", "model.safetensors"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(file, copy):
    (copy[0] / file).unlink()
    os.mkfifo(copy[0] / file)
    with pytest.raises(tl.SurgeryError):
        tl.export.load(copy[0])


@pytest.mark.parametrize(
    "header",
    [
        {"deep.0.weight": {"dtype": "F32", "shape": [1 << 40, 1 << 40], "data_offsets": [0, 4]}},
        {"deep.0.weight": {"dtype": "F32", "shape": [1], "data_offsets": [1 << 50, (1 << 50) + 4]}},
        {"deep.0.weight": {"dtype": "pickle", "shape": [1], "data_offsets": [0, 4]}},
        {
            "__metadata__": {"format": "pickle"},
            "__class__": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
        },
    ],
    ids=["enormous", "outside", "of no dtype", "of a dunder name"],
)
def test_hostile_weights_are_refused(header, copy):
    folder, batch = copy
    text = json.dumps(header).encode()
    weights = len(text).to_bytes(8, "little") + text + bytes(4)
    (folder / "model.safetensors").write_bytes(weights)
    spoil(
        folder,
        lambda content: content.update(
            weights={"bytes": len(weights), "sha256": digest_of(folder / "model.safetensors")}
        ),
    )
    with watched() as seen, pytest.raises(tl.SurgeryError):
        tl.export.load(folder)(batch)
    assert seen == []
