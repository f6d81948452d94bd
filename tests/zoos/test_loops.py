"""Training loops of skorch, Lightning and Accelerate: attach, train, select, prune, tune.

`make test-zoos ZOO=loops` runs this in an environment that has the three.
"""

import os
import pickle

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import torchleap as tl
from tests.zoos.log import BATCH, FIELDS, IDS, NUMBERS, USEFUL, VOCABULARY, make_log

pytestmark = pytest.mark.skipif(
    os.environ.get("TORCHLEAP_ZOO") != "loops", reason="these tests are run by make test-zoos"
)
WIDTH = 4
ROWS = 24_000
STEPS = ROWS // BATCH
WIDTHS = dict.fromkeys(IDS, WIDTH) | dict.fromkeys(NUMBERS, 1)


class Ranker(nn.Module):
    """A table per id, and a network over all columns.

    Shape:
        A batch of (B, 12): the ids, then the numbers; the logits, (B,).
    """

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(VOCABULARY, WIDTH) for _ in IDS])
        self.net = nn.Sequential(nn.Linear(WIDTH * len(IDS) + len(NUMBERS), 16), nn.ReLU())
        self.last = nn.Linear(16, 1)

    def forward(self, x):
        ids = x[:, : len(IDS)].long()
        columns = [table(ids[:, place]) for place, table in enumerate(self.tables)]
        return self.last(self.net(torch.cat([*columns, x[:, len(IDS) :]], dim=1))).squeeze(1)


@pytest.fixture(scope="module")
def rows():
    log = make_log(ROWS)
    columns = log.tensors()
    assert tuple(columns) == FIELDS
    return torch.stack([columns[name].float() for name in FIELDS], dim=1), log.labels()


@pytest.fixture
def loader(rows):
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*rows), batch_size=BATCH)


def assert_is_pruned_exactly(plugin, batch, tolerance=1e-5):
    """Select, prune natively and compare; return the pruned model."""
    selection = plugin.select()
    assert set(selection.kept) == set(USEFUL)
    plan = plugin.plan(selection)
    small = plan.apply().eval()
    assert plan.parameters[1] < 0.6 * plan.parameters[0]
    assert not any("Nothing behind the gates" in note for note in plan.notes)
    with torch.no_grad(), plugin.masked(selection):
        expected = plugin.model.eval()(batch)
        torch.testing.assert_close(small(batch), expected, atol=tolerance, rtol=10 * tolerance)
    return small


class TestSkorch:
    @pytest.fixture
    def net(self):
        from skorch import NeuralNetBinaryClassifier

        from torchleap.integrations.skorch import AttachGates

        torch.manual_seed(0)
        return NeuralNetBinaryClassifier(
            Ranker,
            optimizer=torch.optim.Adam,
            lr=1e-2,
            batch_size=BATCH,
            max_epochs=1,
            train_split=None,
            verbose=0,
            callbacks=[("gates", AttachGates(WIDTHS, at="net.0", steps=STEPS, seed=0))],
        )

    def test_a_callback_attaches_at_each_fit_and_the_pruned_module_trains_on(self, net, rows):
        x, y = rows
        for _ in range(2):  # each fit() makes a new module, and the callback gates for it
            net.fit(x, y)
            plugin = tl.attached(net.module_)
            small = assert_is_pruned_exactly(plugin, x[:333])
        before = small.last.weight.clone()
        tuned = type(net)(small, lr=1e-2, batch_size=BATCH, max_epochs=1, verbose=0)
        tuned.fit(x[:2000], y[:2000])
        assert not torch.equal(tuned.module_.last.weight, before)

    def test_partial_fit_keeps_the_gates(self, net, rows):
        x, y = rows
        net.fit(x[:2000], y[:2000])
        gates = tl.attached(net.module_).gates
        net.partial_fit(x[:2000], y[:2000])
        assert tl.attached(net.module_).gates is gates
        assert gates.steps[0] == 20

    def test_an_instance_that_is_attached_keeps_its_gates_in_fit(self, rows):
        from skorch import NeuralNetBinaryClassifier

        model = Ranker()
        plugin = tl.attach(model, WIDTHS, at="net.0", seed=0)
        plugin.learn(steps=10)
        net = NeuralNetBinaryClassifier(
            model, batch_size=BATCH, max_epochs=1, train_split=None, verbose=0
        )
        net.fit(rows[0][:2000], rows[1][:2000])
        assert net.module_ is model
        assert plugin.gates.steps[0] == 10

    def test_a_net_can_be_pickled_and_searched(self, net, rows):
        from sklearn.model_selection import GridSearchCV

        x, y = rows[0][:1000].numpy(), rows[1][:1000].numpy()
        search = GridSearchCV(
            net, {"callbacks__gates__strength": [0.2, 0.4]}, cv=2, scoring="roc_auc"
        )
        search.fit(x, y)
        assert all(0.5 < score < 1 for score in search.cv_results_["mean_test_score"])
        again = pickle.loads(pickle.dumps(search.best_estimator_))
        assert tl.attached(again.module_).fields.names == FIELDS


class TestLightning:
    @pytest.fixture
    def module(self):
        import lightning

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.ranker = Ranker()

            def forward(self, x):
                return self.ranker(x)

            def training_step(self, batch, _):
                return binary_cross_entropy_with_logits(self(batch[0]), batch[1])

            def configure_optimizers(self):
                return torch.optim.Adam(self.parameters(), lr=1e-2)

        torch.manual_seed(0)
        return Module()

    def trainer(self, folder, **settings):
        import lightning

        return lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
            **{"enable_checkpointing": False, **settings},
        )

    @pytest.mark.parametrize(
        "settings",
        [{}, {"precision": "bf16-mixed"}, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1}],
        ids=["plain", "bf16", "accumulation"],
    )
    def test_gates_learn_in_its_loop_and_the_pruned_model_trains_on(
        self, module, loader, rows, tmp_path, settings
    ):
        plugin = tl.attach(module.ranker, WIDTHS, at="net.0", seed=0)
        plugin.learn(steps=STEPS)
        self.trainer(tmp_path, **settings).fit(module, loader)
        module.ranker = assert_is_pruned_exactly(plugin, rows[0][:333])
        before = module.ranker.last.weight.clone()
        self.trainer(tmp_path, limit_train_batches=4, **settings).fit(module, loader)
        assert not torch.equal(module.ranker.last.weight, before)

    def test_a_checkpoint_restores_the_gates(self, module, loader, tmp_path):
        plugin = tl.attach(module.ranker, WIDTHS, at="net.0", seed=0)
        plugin.learn(steps=STEPS)
        trainer = self.trainer(tmp_path, limit_train_batches=30, enable_checkpointing=True)
        trainer.fit(module, loader)
        trainer.save_checkpoint(tmp_path / "run.ckpt")
        other = type(module)()
        again = tl.attach(other.ranker, WIDTHS, at="net.0", seed=0)
        state = torch.load(tmp_path / "run.ckpt", weights_only=True)["state_dict"]
        other.load_state_dict(state)
        assert again.scores() == plugin.scores()
        assert again.gates.steps[0] == 30


class TestAccelerate:
    @pytest.fixture(autouse=True)
    def forget_the_precision(self):
        from accelerate.state import AcceleratorState

        yield
        AcceleratorState._reset_state(reset_partial_state=True)

    @pytest.mark.parametrize("precision", ["no", "bf16"])
    def test_gates_learn_in_a_loop_with_accelerate(self, loader, rows, precision):
        from accelerate import Accelerator

        torch.manual_seed(0)
        model = Ranker()
        plugin = tl.attach(model, WIDTHS, at="net.0", seed=0)
        plugin.learn(steps=STEPS)
        accelerator = Accelerator(cpu=True, mixed_precision=precision)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        wrapped, optimizer, batches = accelerator.prepare(model, optimizer, loader)
        self.train(accelerator, wrapped, optimizer, batches)
        tolerance = 0.05 if precision == "bf16" else 1e-5  # of logits of about 5
        small = assert_is_pruned_exactly(plugin, rows[0][:333], tolerance)
        before = small.last.weight.clone()
        optimizer = torch.optim.Adam(small.parameters(), lr=1e-2)
        small, optimizer = accelerator.prepare(small.train(), optimizer)
        self.train(accelerator, small, optimizer, list(batches)[:4])
        assert not torch.equal(accelerator.unwrap_model(small).last.weight, before)

    def train(self, accelerator, model, optimizer, batches):
        for x, y in batches:
            optimizer.zero_grad()
            accelerator.backward(binary_cross_entropy_with_logits(model(x), y))
            optimizer.step()
