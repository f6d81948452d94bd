"""Hostile and damaged checkpoints: they run no code and reach no optimizer with other shapes."""

import io
import json
import os
import pickle
import random
import struct
import zipfile

import polars as pl
import pytest
import torch
from torch import nn

import torchleap as tl
from tests.hostile.watch import watched
from torchleap._common.plain import key_of
from torchleap._common.sealed import digest_of, load_sealed, save_sealed
from torchleap.training.checkpoints import CheckpointError
from torchleap.training.fit import Hook, Training, TrainingError, fit
from torchleap.training.lazy_adam import LazyAdam
from torchleap.training.states import restore_optimizer

SETTINGS = Training(batch=64, epochs=2, checkpoint_steps=2)


class Payload:
    """An object whose pickle runs a command."""

    def __reduce__(self):
        return os.system, ("touch MARK",)


class Stop(Hook):
    def after_step(self, run):
        if run.step == 5:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def task():
    generator = random.Random(0)
    rows = {
        "click": [generator.randrange(2) for _ in range(400)],
        "item": [str(generator.randrange(9)) for _ in range(400)],
        "price": [generator.random() for _ in range(400)],
    }
    return tl.data.read(pl.DataFrame(rows), label="click", cache=None)


def model_for(task):
    torch.manual_seed(0)
    return tl.models.build("mlp", task)


@pytest.fixture(scope="module")
def good(task, tmp_path_factory):
    """Return the bytes of a checkpoint."""
    path = tmp_path_factory.mktemp("fit") / "run.pt"
    with pytest.raises(KeyboardInterrupt):
        fit(model_for(task), task, SETTINGS, hooks=[Stop()], checkpoint=path)
    return path.read_bytes()


@pytest.fixture
def saved(good, tmp_path, monkeypatch):
    """Return a checkpoint to be damaged, in the current folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.pt"
    path.write_bytes(good)
    return path


def refused(path, task):
    """Resume, which must fail in one sentence without running anything or changing the model."""
    model = model_for(task)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with watched(path.parent, code=False) as seen, pytest.raises(TrainingError) as problem:
        fit(model, task, SETTINGS, hooks=[Hook()], checkpoint=path)
    assert seen == []
    assert not (path.parent / "MARK").exists()
    assert str(path) in str(problem.value)
    assert "Remove it to start again." in str(problem.value)
    assert "\n" not in str(problem.value)
    assert path.exists()
    return before, model.state_dict()


def test_a_good_checkpoint_is_resumed(saved, task):
    assert fit(model_for(task), task, SETTINGS, hooks=[Hook()], checkpoint=saved).step > 5


def test_no_flipped_bit_of_a_checkpoint_is_accepted(saved, good, task):
    places = random.Random(0).sample(range(len(good)), 40)
    for place in (0, 3, len(good) - 1, len(good) - 70, len(good) - 90, *places):
        flipped = bytearray(good)
        flipped[place] ^= 1 << place % 8
        saved.write_bytes(flipped)
        with pytest.raises(Exception, match="digest|not what was written"):
            load_sealed(saved)
    before, after = refused(saved, task)
    assert all(torch.equal(before[name], after[name]) for name in before)
    saved.write_bytes(good[:-100])
    refused(saved, task)


def shaped(change):
    """Change the first state of the model's optimizer."""

    def spoil(content):
        optimizer = content["optimizers"][0]
        change(optimizer["state"][0], optimizer)

    return spoil


def grown(state, _):
    state["exp_avg"] = torch.zeros(1000, 1000)


def shrunk(state, _):
    state["exp_avg"] = torch.zeros(1)


def without(state, _):
    del state["exp_avg_sq"]


def of_integers(state, _):
    state["exp_avg"] = state["exp_avg"].long()


def sparse(state, _):
    state["exp_avg"] = state["exp_avg"].to_sparse()


def beyond(_, optimizer):
    optimizer["state"][10_000] = optimizer["state"][0]


def switched(_, optimizer):
    optimizer["param_groups"][0]["fused"] = None


def fewer(_, optimizer):
    optimizer["param_groups"][0]["params"].pop()


def named(_, optimizer):
    optimizer["param_groups"][0]["lr"] = "fast"


SPOILED = {
    "a larger state": shaped(grown),
    "a smaller state": shaped(shrunk),
    "a state of integers": shaped(of_integers),
    "a sparse state": shaped(sparse),
    "a state that lacks one": shaped(without),
    "a state of a parameter that is not there": shaped(beyond),
    "another switch": shaped(switched),
    "fewer parameters": shaped(fewer),
    "a rate that is text": shaped(named),
    "weights of another dtype": lambda content: content["model"].update(
        {name: tensor.double() for name, tensor in content["model"].items()}
    ),
    "best weights of another shape": lambda content: content["run"].update(
        best={name: tensor.new_zeros(3) for name, tensor in content["model"].items()}
    ),
    "another attribute of the run": lambda content: content["run"].update(
        model=nn.Linear(1, 1).state_dict()
    ),
    "a step that is text": lambda content: content["run"].update(step="5"),
    "a step below 0": lambda content: content["run"].update(step=-5),
    "random numbers of another size": lambda content: content.update(
        random=[torch.zeros(3, dtype=torch.uint8)]
    ),
    "random numbers that are a list": lambda content: content.update(random=[[1, 2]]),
    "a place that is not a number": lambda content: content["batches"].update(position="3"),
    "a place below 0": lambda content: content["batches"].update(position=-(10**9)),
    "no optimizer": lambda content: content.pop("optimizers"),
    "nothing": lambda content: content.clear(),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_sealed_checkpoint_with_hostile_content_is_refused(name, saved, task):
    content = load_sealed(saved)
    SPOILED[name](content)
    save_sealed(content, saved)
    refused(saved, task)


def test_a_state_that_repeats_one_number_is_spread_out_before_a_fused_step():
    layer = nn.Linear(64, 64)
    optimizer = torch.optim.Adam(layer.parameters(), fused=True)
    layer(torch.ones(2, 64)).sum().backward()
    optimizer.step()
    saved = optimizer.state_dict()
    repeated = torch.zeros(1, 1).expand(64, 64)  # 4 bytes; fused Adam would write 16,384
    saved["state"][0]["exp_avg"] = repeated
    restore_optimizer(optimizer, saved)
    assert optimizer.state[layer.weight]["exp_avg"].is_contiguous()


@pytest.mark.parametrize(
    "change",
    [
        {"moments": torch.zeros(5, 2, 3)},
        {"last": torch.zeros(3, dtype=torch.int32)},
        {"last": torch.full((20,), 10**6, dtype=torch.int32)},
        {"last": torch.full((20,), -1, dtype=torch.int32)},
        {"last": torch.zeros(20, dtype=torch.int64)},
        {"reach": torch.zeros(1, 2, dtype=torch.float64)},
        {"step": 10**9},
        {"base": 10},
        {"moments": torch.zeros(1, 1, 1).expand(20, 2, 3)},
    ],
    ids=str,
)
def test_a_state_of_lazy_adam_that_points_elsewhere_is_refused(change):
    table = nn.Embedding(20, 3, sparse=True)
    optimizer = LazyAdam([table])
    table(torch.arange(4)).sum().backward()
    optimizer.step()
    saved = optimizer.state_dict()
    saved["state"][0] = {**saved["state"][0], **change}
    with pytest.raises(tl.TorchleapError, match="is not of a table of 20 rows, 3 wide"):
        restore_optimizer(optimizer, saved)


def test_lazy_adam_refuses_ids_that_the_table_does_not_have():
    table = nn.Embedding(20, 3, sparse=True)
    optimizer = LazyAdam([table])
    table(torch.arange(4)).sum().backward()
    optimizer.step()
    for ids in ([10**7], [-1]):
        with pytest.raises(IndexError, match="Expected ids from 0 to 19, but found"):
            table(torch.tensor(ids))


def zipped(content, method=zipfile.ZIP_STORED):
    """Return a file of torch.save with another pickle in it."""
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w", method) as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
    return found.getvalue()


def text(words):
    """Return a short text in a pickle."""
    return b"\x8c" + bytes([len(words)]) + words.encode()


MODULE = "torch.distributed.checkpoint.filesystem"
DOTTED = b"\x80\x04" + text(MODULE) + text("os.system") + b"\x93" + text("touch MARK") + b"\x85R."
PICKLES = {
    "os.system": pickle.dumps(Payload()),
    "a dotted name": DOTTED,
    "eval": b'cbuiltins\neval\n(S\'open("MARK", "w")\'\ntR.',
    "getattr": b"cbuiltins\ngetattr\n(cos\nsystem\nS'__call__'\ntR.",
    "a module of torch": b"ctorch.hub\nload\n(S'x'\nS'y'\ntR.",
    "a class that is built": b"ctorch.nn.modules.module\nModule\n)R}S'forward'\ncos\nsystem\nsb.",
    "an enormous storage": b"ctorch\nempty\n(L1000000000000000L\ntR.",
}


@pytest.mark.parametrize("name", PICKLES)
def test_a_checkpoint_with_a_hostile_pickle_runs_nothing(name, saved, task):
    for content in (PICKLES[name], zipped(PICKLES[name])):
        saved.write_bytes(content)
        refused(saved, task)
        seal(saved)
        refused(saved, task)


def seal(path):
    """Add the digest as an attacker would."""
    content = path.read_bytes()
    if content.startswith(b"PK"):
        content = content[:-2] + (17 + 64).to_bytes(2, "little")
    path.write_bytes(content)
    digest = digest_of(path)
    path.write_bytes(content + b"torchleap-sha256:" + digest.encode())


def test_a_checkpoint_that_would_unpack_into_gigabytes_is_not_unpacked(saved, task):
    saved.write_bytes(zipped(bytes(1 << 20), zipfile.ZIP_DEFLATED))
    seal(saved)
    with pytest.raises(tl.TorchleapError, match="expected tensors that are not packed"):
        load_sealed(saved)
    refused(saved, task)


def with_two_lists(content):
    """Put a second list of entries, all not packed, where Python reads it, but not PyTorch."""
    end = content.rfind(b"PK\5\6")
    size, start = struct.unpack("<LL", content[end + 12 : end + 20])
    harmless = bytearray(content[start : start + size])
    place = 0
    while place < size:
        harmless[place + 10 : place + 12] = bytes(2)  # how it is packed: not at all
        place += 46 + sum(struct.unpack("<HHH", harmless[place + 28 : place + 34]))
    return content[:end] + bytes(harmless) + content[end:]


def test_a_packed_checkpoint_with_two_lists_of_entries_is_not_unpacked(saved, task):
    torch.save({"x": torch.zeros(1 << 18)}, saved)
    packed = io.BytesIO()
    with (
        zipfile.ZipFile(saved) as archive,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as other,
    ):
        for entry in archive.namelist():
            other.writestr(entry, archive.read(entry))
    saved.write_bytes(with_two_lists(packed.getvalue()))
    with zipfile.ZipFile(saved) as archive:
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}
    seal(saved)
    with pytest.raises(tl.TorchleapError, match="expected tensors that are not packed"):
        load_sealed(saved)


class Batches:
    """The same few rows in every batch."""

    def __iter__(self):
        while True:
            yield torch.ones(4, 3), torch.tensor([0.0, 1.0, 0.0, 1.0])


def streamed(folder, steps, width=1):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, width), nn.Flatten(0))
    return model, tl.stream(model, Batches(), Training(epochs=1, steps=steps), checkpoint=folder)


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """Return the folder of a stream's only checkpoint."""
    monkeypatch.chdir(tmp_path)
    streamed(tmp_path / "state", 4)
    (folder,) = (tmp_path / "state").iterdir()
    return folder


def refused_stream(folder):
    model = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with (
        watched(folder, code=False) as seen,
        pytest.raises((CheckpointError, TrainingError)) as problem,
    ):
        tl.stream(model, Batches(), Training(epochs=1, steps=8), checkpoint=folder.parent)
    assert seen == []
    assert not (folder.parents[1] / "MARK").exists()
    assert "Remove it to resume from the one before." in str(problem.value)
    assert "\n" not in str(problem.value)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def index_with(change):
    def spoil(folder):
        path = folder / "index.json"
        content = json.loads(path.read_text())
        del content["key"]
        change(content)
        content["files"] |= {
            name: digest_of(folder / name) for name in content["files"] if (folder / name).is_file()
        }
        path.write_text(json.dumps({**content, "key": key_of(content)}))

    return spoil


def part_with(place, value):
    """Change the place of the first part of a tensor."""

    def change(content):
        next(iter(content["tensors"].values()))["parts"][0][place] = value

    return index_with(change)


def elsewhere(name):
    def change(content):
        (old,) = content["files"]
        text = json.dumps(content).replace(json.dumps(old), json.dumps(name))
        content.clear()
        content.update(json.loads(text))

    return index_with(change)


def tensor_with(**changes):
    return index_with(lambda content: next(iter(content["tensors"].values())).update(changes))


def with_pickle(folder):
    (folder / "__0_0.distcp").write_bytes(zipped(PICKLES["os.system"]) * 40)
    index_with(lambda content: None)(folder)


def linked(folder):
    (folder / "__0_0.distcp").rename(folder.parents[1] / "elsewhere")
    (folder / "__0_0.distcp").symlink_to(folder.parents[1] / "elsewhere")


def linked_index(folder):
    (folder / "index.json").rename(folder.parents[1] / "elsewhere.json")
    (folder / "index.json").symlink_to(folder.parents[1] / "elsewhere.json")


def packed(folder):
    """Store the same parts, but packed."""
    path = folder / "__0_0.distcp"
    content = json.loads((folder / "index.json").read_text())
    content_of_file = path.read_bytes()
    parts = b""
    for record in content["tensors"].values():
        for part in record["parts"]:
            with zipfile.ZipFile(
                io.BytesIO(content_of_file[part[3] : part[3] + part[4]])
            ) as archive:
                found = io.BytesIO()
                with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as other:
                    for entry in archive.namelist():
                        other.writestr(entry, archive.read(entry))
            part[3], part[4] = len(parts), len(found.getvalue()) + 9999
            parts += found.getvalue()
    path.write_bytes(parts + bytes(99999))
    (folder / "index.json").write_text(json.dumps(content))
    index_with(lambda content: None)(folder)


STREAMS = {
    "a file above": elsewhere("../__0_0.distcp"),
    "an absolute path": elsewhere("/etc/passwd"),
    "a hidden file": elsewhere(".metadata"),
    "a file that is not there": elsewhere("__7_0.distcp"),
    "an enormous tensor": tensor_with(size=[1 << 40, 1 << 40]),
    "a size below 0": tensor_with(size=[-1]),
    "a size that is text": tensor_with(size="11"),
    "a dtype that is a function": tensor_with(dtype="torch.load"),
    "no parts": tensor_with(parts=[]),
    "a part beyond the file": part_with(3, 1 << 40),
    "a part beyond the tensor": part_with(0, [1 << 40]),
    "an enormous part": part_with(1, [1 << 50]),
    "a part of a file that is not listed": part_with(2, "__1_0.distcp"),
    "a length below 0": part_with(4, -1),
    "tensors with a hostile pickle": with_pickle,
    "tensors that are packed": packed,
    "a link in the place of a file": linked,
    "a link in the place of the index": linked_index,
    "another format": index_with(lambda content: content.update(format=9)),
    "no index": lambda folder: (folder / "index.json").unlink(),
    "an index that is a list": lambda folder: (folder / "index.json").write_text("[]"),
    "lists in lists": lambda folder: (folder / "index.json").write_text("[" * 100_000),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_hostile_checkpoint_of_a_stream_is_refused(name, stored):
    STREAMS[name](stored)
    refused_stream(stored)


@pytest.mark.parametrize("name", PICKLES)
def test_a_pickled_index_is_never_read(name, stored):
    (stored / ".metadata").write_bytes(PICKLES[name])
    with watched(stored.parent, code=False) as seen:
        streamed(stored.parent, 8)
    assert seen == []
    assert not (stored.parents[1] / "MARK").exists()
    (stored / ".metadata").unlink(missing_ok=True)


def test_no_flipped_bit_of_a_streams_checkpoint_is_accepted(stored):
    rng = random.Random(1)
    for file in sorted(stored.iterdir()):
        content = file.read_bytes()
        for place in rng.sample(range(len(content)), 12):
            flipped = bytearray(content)
            flipped[place] ^= 1 << place % 8
            file.write_bytes(flipped)
            refused_stream(stored)
        file.write_bytes(content)
    streamed(stored.parent, 8)
