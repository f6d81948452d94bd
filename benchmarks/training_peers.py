"""DeepCTR-Torch and FuxiCTR as benchmarks/training.py trains them: one epoch by their own `fit`.

The network is the one that all three can build alike: 39 tables of width 8 and an MLP 32-16 with
batch norm and dropout 0.2. There is no wide part: theirs is a table of its own, ours a layer on the
embeddings.
"""

import importlib.util
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from training_epochs import Call, Epoch, silent, stand_in

import torchleap as tl
from torchleap.data.task import Rows, Task
from torchleap.models import MLP, benchmark, build

BATCH = 4096
WIDTH = 8
HIDDEN = (32, 16)
DROPOUT = 0.2
START = 0.01  # standard deviation of fresh embeddings
NETWORK = benchmark(MLP())


def auc_of(rows: Rows, probability: Any) -> float:
    """Return the AUC of probabilities."""
    return tl.auc(rows.all().label, torch.as_tensor(np.asarray(probability)).flatten())


def start_alike(task: Task, tables: list[nn.Embedding], net: nn.Module, seed: int) -> Tensor:
    """Give a peer the fresh weights that ours has for this seed; return the last layer's bias.

    The first weights of the hidden layers still affect the AUC after one epoch, and would hide the
    effect of a trainer.
    """
    torch.manual_seed(seed)
    ours = build(NETWORK, task)
    sizes = [column.categories for column in task.columns]
    weights = ours.inputs.tables[str(WIDTH)].weight.split(sizes)
    pairs = [(table.weight, weight) for table, weight in zip(tables, weights, strict=True)]
    own_layers = linear_layers(ours.net)
    for theirs, own in zip(linear_layers(net), own_layers, strict=True):
        pairs.append((theirs.weight, own.weight))
        if theirs.bias is not None:
            pairs.append((theirs.bias, own.bias))
    with torch.no_grad():
        for theirs, own in pairs:
            theirs.copy_(own)
    return own_layers[-1].bias.detach()


def linear_layers(net: nn.Module) -> list[nn.Linear]:
    """Return the linear layers of a network in their order."""
    return [layer for layer in net.modules() if isinstance(layer, nn.Linear)]


def deepctr_epoch(task: Task, own_start: bool, seed: int) -> Epoch:
    """Train an epoch of DeepCTR-Torch."""
    from deepctr_torch.inputs import SparseFeat
    from deepctr_torch.models import WDL

    columns = [
        SparseFeat(column.name, column.categories, embedding_dim=WIDTH) for column in task.columns
    ]
    settings = {
        "l2_reg_linear": 0,
        "l2_reg_embedding": 0,
        "dnn_dropout": DROPOUT,
        "dnn_use_bn": True,
        "init_std": START,
    }
    # Without columns in its wide part it is an MLP.
    model = WDL([], columns, dnn_hidden_units=HIDDEN, seed=seed, **settings)
    if not own_start:
        net = nn.ModuleList([model.dnn, model.dnn_linear])
        tables = [model.embedding_dict[name] for name in task.fields.names]
        model.out.bias.data.copy_(start_alike(task, tables, net, seed))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.compile(optimizer, "binary_crossentropy", metrics=["auc"])
    train, valid, test = (
        ([rows.all().ids.numpy()], rows.all().label.numpy())
        for rows in (task.train, task.valid, task.test)
    )
    with silent():
        start = time.perf_counter()
        history = model.fit(*train, batch_size=BATCH, epochs=1, verbose=0, validation_data=valid)
        seconds = time.perf_counter() - start
    test_auc = auc_of(task.test, model.predict(test[0], BATCH))
    return Epoch(seconds, history.history["val_auc"][-1], test_auc)


def fuxictr_model(task: Task, folder: Path) -> Any:
    """Return its model DNN, which is in its repository but not in its package."""
    from fuxictr.features import FeatureMap
    from fuxictr.pytorch.layers import FeatureEmbedding, MLP_Block
    from fuxictr.pytorch.models import BaseModel

    class DNN(BaseModel):
        def __init__(self, features: Any) -> None:
            super().__init__(features, model_root=str(folder), metrics=["AUC"], verbose=0)
            self.embedding_layer = FeatureEmbedding(
                features, WIDTH, f"partial(nn.init.normal_, std={START})"
            )
            self.mlp = MLP_Block(
                features.sum_emb_out_dim(),
                list(HIDDEN),
                output_dim=1,
                output_activation=nn.Sigmoid(),
                dropout_rates=DROPOUT,
                batch_norm=True,
            )
            self.compile("adam", "binary_crossentropy", 1e-3)
            self.reset_parameters()

        def forward(self, inputs: Any) -> dict[str, Tensor]:
            embeddings = self.embedding_layer(self.get_inputs(inputs), flatten_emb=True)
            return {"y_pred": self.mlp(embeddings)}

    features = FeatureMap("criteo", str(folder))
    features.labels = ["label"]
    features.default_emb_dim = WIDTH
    for column in task.columns:
        features.features[column.name] = {
            "type": "categorical",
            "source": "",
            "vocab_size": column.categories,
        }
    features.num_fields = features.get_num_fields()
    features.set_column_index()
    return DNN(features)


class OurBatches:
    """Our batches as FuxiCTR's models take them."""

    def __init__(self, rows: Rows, *, shuffle: bool, seed: int) -> None:
        self.names = rows.task.fields.names
        self.batches = rows.batches(BATCH, shuffle=shuffle, seed=seed)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for batch in self.batches:
            yield {**dict(zip(self.names, batch.ids.unbind(1), strict=True)), "label": batch.label}


def fuxictr_batches(task: Task, model: Any, folder: Path) -> tuple[Any, Any]:
    """Return its own loaders of train and valid rows, from files."""
    from fuxictr.pytorch.dataloaders import RankDataLoader

    paths = {}
    for rows in (task.train, task.valid):
        everything = rows.all()
        path = str(folder / f"{rows.part}.npz")
        columns = dict(zip(task.fields.names, everything.ids.numpy().T, strict=True))
        np.savez(path, **columns, label=everything.label.numpy().astype(np.int32))
        paths[f"{rows.part}_data"] = path
    return RankDataLoader(model.feature_map, stage="train", batch_size=BATCH, **paths)


def fuxictr_epoch(task: Task, own_start: bool, own_batches: bool, seed: int) -> Epoch:
    """Train an epoch of FuxiCTR, from its own loaders or from our batches."""
    with tempfile.TemporaryDirectory() as name:
        torch.manual_seed(seed)
        model = fuxictr_model(task, Path(name))
        Path(model.model_dir).mkdir()  # where it saves its best weights
        if not own_start:
            tables = model.embedding_layer.embedding_layer.embedding_layers
            start_alike(task, [tables[name] for name in task.fields.names], model.mlp, seed)
        if own_batches:
            train, valid = fuxictr_batches(task, model, Path(name))
        else:
            train = OurBatches(task.train, shuffle=True, seed=seed)
            valid = OurBatches(task.valid, shuffle=False, seed=seed)
        start = time.perf_counter()
        model.fit(train, epochs=1, validation_data=valid)
        seconds = time.perf_counter() - start
        valid_auc = model._best_metric
        test = model.predict(OurBatches(task.test, shuffle=False, seed=seed))
    return Epoch(seconds, valid_auc, auc_of(task.test, test))


def peers_of(task: Task, own_start: bool) -> dict[str, Call]:
    """Return the calls of the packages that are installed, by name."""
    found: dict[str, Call] = {}
    if importlib.util.find_spec("deepctr_torch"):
        # The real module queries the network for a newer version.
        stand_in("deepctr_torch.utils", check_version=lambda version: None)
        found["DeepCTR-Torch"] = partial(deepctr_epoch, task, own_start)
    if importlib.util.find_spec("fuxictr"):
        # for its loader of Parquet, and for its preparation of data; neither is used
        stand_in("ray")
        stand_in("fuxictr.preprocess.build_dataset", __all__=[])
        found["FuxiCTR"] = partial(fuxictr_epoch, task, own_start, True)
        found["FuxiCTR, our batches"] = partial(fuxictr_epoch, task, own_start, False)
    return found
