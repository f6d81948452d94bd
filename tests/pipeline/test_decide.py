"""decide: from a task to a smaller model with the evidence; it resumes where it was killed."""

import copy
import json
import math
import re
from dataclasses import asdict, replace

import polars as pl
import pytest
import torch

import torchleap as tl
from torchleap.gates.turn_trainer import turns_of
from torchleap.methods import LeAPMethod, PressureMethod
from torchleap.methods.leap import LEAST
from torchleap.objectives import METRICS
from torchleap.pipeline import evidence
from torchleap.pipeline.checkpoint import forget, is_saved
from torchleap.pipeline.decide import decide
from torchleap.pipeline.retrain import suited_batch
from torchleap.pipeline.serve import Served
from torchleap.selection import Selection
from torchleap.training import finetune
from torchleap.training.fit import Hook, Training, TrainingError, evaluate

from ..training.test_fit import KINDS, clicks
from .test_search import KilledError

TRAINING = Training(batch=96, epochs=4, patience=4, lr=1e-2, checkpoint_steps=5)
GATES = LeAPMethod(optimism=0.0)  # in 80 steps nothing is memorised
PRESSURE = PressureMethod(optimism=0.0)
COLUMNS = {**KINDS, "size": "numeric"}
KEYS = {
    *("format", "kind", "title", "created", "command", "versions", "machine", "settings"),
    *("task", "method", "model", "model_settings", "training", "seed", "rule", "fields"),
    *("trajectories", "history", "curve", "metrics", "known_metrics", "savings", "cuts", "notes"),
    *("seconds", "findings", "undecided", "path", "certificate"),
}  # fmt: skip
FIELD_KEYS = {
    *("name", "width", "cost", "protected", "group", "kind", "sparsity", "missing", "bytes"),
    *("divergence", "price", "score", "kept", "role", "ids"),
    *("worth", "worth_low", "worth_high"),
}


def rows(count=2400, seed=0):
    """As `clicks`, with one more column of noise."""
    frame = clicks(count, seed)
    return frame.with_columns(pl.Series("size", [math.sin(7.0 * row) for row in range(count)]))


@pytest.fixture(scope="module")
def task():
    return tl.data.read(rows(), label="click", split="order", columns=COLUMNS)


@pytest.fixture(scope="module")
def by_leap(task):
    return decide(
        task,
        model="mlp",
        method=GATES,
        training=TRAINING,
        roles={"item": "useful", "size": "noise"},
    )


@pytest.fixture(scope="module")
def by_pressure(task):
    return decide(task, model="mlp", method=PRESSURE, training=TRAINING)


@pytest.fixture(scope="module")
def by_permutation(task):
    return decide(task, model="mlp", method="permutation", training=TRAINING)


@pytest.fixture(params=["leap", "permutation"])
def decision(request):
    return request.getfixturevalue(f"by_{request.param}")


def test_useful_fields_are_kept_and_noise_is_dropped(by_leap, by_permutation):
    worth = {field["name"]: field["worth"] for field in by_leap.record["fields"]}
    assert min(worth["item"], worth["price"]) > 2 * max(worth["user"], worth["size"])
    assert {"item", "price"} <= set(by_leap.selection.kept)
    assert by_permutation.selection.kept == ("item", "price")
    assert by_leap.record["rule"] == {"tolerance": "1se"}
    assert by_permutation.record["rule"] == {"share": 0.5}


def test_a_tolerance_lets_other_methods_mask_fields_without_adaptation(task, by_permutation):
    found = decide(task, model="mlp", method="permutation", training=TRAINING, tolerance=0.01)
    points = found.record["path"]["points"]
    assert [len(point["kept"]) for point in points] == [4, 3, 2, 1]
    assert found.record["path"]["adapted"] is False
    assert found.record["rule"] == {"tolerance": 0.01}
    assert set(found.selection.kept) == {"item", "price"}
    assert found.selection.scores == by_permutation.selection.scores
    curve = found.record["curve"]["points"]
    assert [point["value"] for point in curve] == [point["metric"] for point in points]
    assert by_permutation.record["path"] is None
    page = tl.Report(found.record).html()
    assert "the lowest score first, without adaptation" in page
    assert "The price of an open gate rises" not in page


def positives(task, part):
    return int(getattr(task, part).label.sum())


def test_the_record_is_complete_plain_json(decision):
    record = decision.record
    assert json.loads(json.dumps(record, allow_nan=False)).keys() == record.keys() == KEYS
    assert all(set(field) == FIELD_KEYS for field in record["fields"])
    assert [field["name"] for field in record["fields"]] == list(decision.task.fields.names)
    assert (
        tuple(field["name"] for field in record["fields"] if field["kept"])
        == decision.selection.kept
    )
    assert tl.Report(record).record["fields"][0]["name"] == record["fields"][0]["name"]
    assert record["task"] == {
        **{
            "objective": "binary",
            "label": "click",
            "source": None,
            "rows": {"train": 1920, "valid": 240, "test": 240},
        },
        **{"fields": 4, "dims": decision.task.fields.dims, "group": None},
        **{
            "positive": None,
            "positives": {
                part: positives(decision.task, part) for part in ("train", "valid", "test")
            },
        },
    }
    assert record["training"] == {**vars(TRAINING)}
    assert not record["rule"].keys() & record["settings"].keys()


def test_gates_are_recorded_at_each_evaluation(by_leap, by_pressure, by_permutation):
    found = by_pressure.record["trajectories"]
    assert found["steps"] == [20, 40, 60, 80]
    assert {name: gates[-1] for name, gates in found["gates"].items()} == pytest.approx(
        by_pressure.selection.scores, abs=0.01
    )
    assert by_pressure.record["rule"] == {"threshold": 0.5}
    path = by_leap.record["trajectories"]
    every = LEAST // turns_of(len(by_leap.selection.fields))
    assert path["steps"][:2] == [every, 2 * every]
    assert sum(gates[-1] > 0.1 for gates in path["gates"].values()) == 1
    assert by_permutation.record["trajectories"] is None
    assert not any(
        key.startswith("gate_") for record in by_leap.record["history"] for key in record
    )


def test_only_gates_have_prices_and_only_known_fields_have_roles(
    by_leap, by_pressure, by_permutation
):
    assert all(field["price"] > 0 for field in by_pressure.record["fields"])
    assert all(field["price"] is None for field in by_leap.record["fields"])
    assert all(field["price"] is None for field in by_permutation.record["fields"])
    assert [field["role"] for field in by_leap.record["fields"]] == ["useful", None, None, "noise"]


def test_the_curve_of_a_path_has_the_metric_of_its_points(task, by_leap):
    found = tl.search(task, model="mlp", method=GATES, training=TRAINING)
    values = [point.metric for point in found.path.points]
    assert [point["value"] for point in by_leap.record["curve"]["points"]] == values
    assert [point["metric"] for point in by_leap.record["path"]["points"]] == values


def test_the_curve_begins_with_the_unmasked_model_and_masks_the_worst_first(
    task, by_pressure, by_permutation
):
    searched = tl.search(task, model="mlp", method=PRESSURE, training=TRAINING).model
    plain = tl.retrain(task, model="mlp", training=TRAINING).model
    for decision, model in ((by_pressure, searched), (by_permutation, plain)):
        curve = decision.record["curve"]
        assert curve["points"][0] == {
            "fields": 0,
            "dims": 0,
            "value": pytest.approx(evaluate(model, task.valid)["auc"]),
        }
        dims = [point["dims"] for point in curve["points"]]
        assert dims == sorted(set(dims))
        assert [point["fields"] for point in curve["points"]] == [0, 1, 2, 3]
        assert set(curve["order"][:2]) == {"user", "size"}
        assert curve["order"][2] in ("item", "price")
        assert curve["points"][2]["value"] > curve["points"][3]["value"] + 0.05
        assert [point["dims"] for point in curve["retrained"]] == [
            0,
            task.fields.dims - decision.selection.dims,
        ]


def test_a_long_curve_has_few_points(monkeypatch, task):
    monkeypatch.setattr(evidence, "CURVE_STEPS", 2)
    once = replace(TRAINING, epochs=1)
    decision = decide(task, model="mlp", method="permutation", training=once, share=0.5)
    found = decision.record["curve"]
    assert [point["fields"] for point in found["points"]] == [0, 2, 3]
    assert len(found["order"]) == 3


def test_metrics_are_of_both_models_on_test_rows(task, decision):
    metrics = decision.record["metrics"]
    plain = tl.retrain(task, model="mlp", training=TRAINING).model
    assert metrics["before"] == evaluate(plain, task.test)
    assert metrics["after"] == evaluate(decision.model, task.test)
    change = metrics["difference"]
    assert change["metric"] == "auc"
    assert change["value"] == pytest.approx(metrics["after"]["auc"] - metrics["before"]["auc"])
    assert change["interval"][0] < change["value"] < change["interval"][1]


def test_a_saved_result_scores_the_original_rows_as_the_record_reports(decision, tmp_path):
    decision.save(tmp_path)
    expected = {
        "selection.json",
        "model",
        "encoding",
        "layout.json",
        "metrics.json",
        "history.jsonl",
        "report.json",
    }
    assert {path.name for path in tmp_path.iterdir()} == expected
    test = rows().tail(240)
    served = Served.load(tmp_path)
    scores = torch.cat(list(served.probabilities(test.select(decision.selection.kept))))
    assert tl.auc(test["click"].to_numpy(), scores) == pytest.approx(
        decision.record["metrics"]["after"]["auc"], abs=1e-9
    )
    assert Selection.load(tmp_path / "selection.json") == decision.selection
    assert json.loads((tmp_path / "metrics.json").read_text()) == {
        **decision.record["metrics"],
        "certificate": decision.record["certificate"],
    }
    assert json.loads((tmp_path / "report.json").read_text()) == json.loads(
        json.dumps(decision.record)
    )
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == len(
        decision.record["history"]
    )
    decision.save(tmp_path)  # again, over what is there


@pytest.fixture
def quick():
    """Return decisions by random scores after one epoch, which take little time."""
    training = replace(TRAINING, epochs=1)
    return lambda task, **settings: decide(
        task, model="mlp", method="random", training=training, **settings
    )


@pytest.mark.parametrize(
    ("rule", "holds"),
    [
        (
            {"threshold": 0.4},
            lambda s: all(
                kept == (score >= 0.4) for kept, score in zip(s.keep, s.score, strict=True)
            ),
        ),
        ({"share": 0.25}, lambda s: len(s.kept) == 1),
        ({"dims": 9}, lambda s: s.dims <= 9),
        ({"cost": 3.0}, lambda s: sum(f.cost for f in s.fields if f.name in s.kept) <= 3.0),
    ],
)
def test_each_rule(task, quick, rule, holds):
    priced = task.priced(costs={"item": 0.5, "user": 2.5})
    found = quick(priced, **rule)
    assert holds(found.selection)
    assert found.record["rule"] == rule
    assert {f["name"]: f["cost"] for f in found.record["fields"]} == {
        "item": 0.5,
        "price": 1.0,
        "user": 2.5,
        "size": 1.0,
    }


def test_protected_fields_are_kept_and_never_masked(task):
    found = decide(
        task.priced(protect=["size", "user"]),
        model="mlp",
        training=replace(TRAINING, epochs=2),
        dims=6,
    )
    assert {"size", "user"} <= set(found.selection.kept)
    assert not {"size", "user"} & set(found.record["curve"]["order"])
    assert [f["protected"] for f in found.record["fields"]] == [False, False, True, True]


def test_when_all_fields_are_protected_nothing_is_dropped(task, quick):
    found = quick(task.priced(protect=task.fields.names), share=0.5)
    assert found.selection.dropped == ()
    assert len(found.record["curve"]["points"]) == 1
    assert found.record["metrics"]["difference"]["value"] == pytest.approx(0, abs=0.05)


def test_groups_are_measured_by_gauc(task):
    grouped = tl.data.read(rows(), label="click", split="order", columns=COLUMNS, group="user")
    found = decide(
        grouped, model="mlp", training=replace(TRAINING, metric="gauc", epochs=2), share=0.5
    ).record
    assert (
        found["curve"]["metric"],
        found["metrics"]["difference"]["metric"],
        found["task"]["group"],
    ) == (
        "gauc",
        "gauc",
        "user",
    )
    change = found["metrics"]["after"]["gauc"] - found["metrics"]["before"]["gauc"]
    assert found["metrics"]["difference"]["value"] == pytest.approx(change)


class KillIn(Hook):
    """A power cut at a step of a training run, counted from 0."""

    def __init__(self, number, step):
        self.number, self.step, self.runs = number, step, -1

    def at_start(self, run):
        self.runs += 1

    def after_step(self, run):
        if (self.runs, run.step) == (self.number, self.step):
            raise KilledError


def without_time(record):
    kept = {
        name: value
        for name, value in copy.deepcopy(record).items()
        if name not in ("seconds", "created", "savings")
    }
    for entry in kept["history"]:
        entry["seconds"] = 0
    return kept


@pytest.mark.parametrize("number", [0, 1, 2], ids=["all fields", "search", "fine-tuning"])
def test_a_killed_decision_resumes_to_the_same_end(task, by_leap, tmp_path, number):
    folder, roles = tmp_path / "state", {"item": "useful", "size": "noise"}

    def go(**more):
        return decide(
            task,
            model="mlp",
            method=GATES,
            training=TRAINING,
            checkpoint=folder,
            roles=roles,
            **more,
        )

    with pytest.raises(KilledError):
        go(callbacks=[KillIn(number, 13)])
    assert {"decision.json", "search"} <= {path.name for path in folder.iterdir()}
    assert is_saved(folder)
    again = go()
    assert again.selection == by_leap.selection
    assert without_time(again.record) == without_time(by_leap.record)
    ours, theirs = again.model.state_dict(), by_leap.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert not folder.exists()


def test_another_method_resumes_as_well(task, by_permutation, tmp_path):
    def go(**more):
        return decide(
            task,
            model="mlp",
            method="permutation",
            training=TRAINING,
            checkpoint=tmp_path / "state",
            **more,
        )

    with pytest.raises(KilledError):
        go(callbacks=[KillIn(1, 13)])
    again = go()
    assert again.selection == by_permutation.selection
    assert again.record["metrics"] == by_permutation.record["metrics"]


def test_a_checkpoint_serves_another_rule_but_not_other_settings(task, tmp_path):
    class Count(Hook):
        steps = 0

        def after_step(self, run):
            self.steps += 1

    def go(changed=task, training=TRAINING, **more):
        return decide(
            changed,
            model="mlp",
            training=training,
            checkpoint=tmp_path,
            keep_checkpoint=True,
            **more,
        )

    first, count = go(share=0.5), Count()
    assert go(share=0.5, callbacks=[count]).selection == first.selection
    assert count.steps == 0
    assert len(go(share=0.25, callbacks=[count]).selection.kept) == 1
    assert count.steps <= 60  # of fine-tuning alone
    with pytest.raises(
        TrainingError,
        match="is of another run: its lr is 0.01, not 0.02. Resume with the same settings",
    ):
        go(training=replace(TRAINING, lr=0.02))
    with pytest.raises(TrainingError, match="its seed is 0, not 1"):
        go(seed=1)
    with pytest.raises(
        TrainingError,
        match=r"its method is LeAPMethod.*optimism=0.25.*not LeAPMethod.*optimism=0.2",
    ):
        go(method=LeAPMethod(optimism=0.2))
    with pytest.raises(TrainingError, match=r"its protected is \[\], not \['user'\]"):
        go(task.priced(protect=["user"]))
    with pytest.raises(TrainingError, match="its time_limit is None, not 10"):
        go(time_limit=10.0)
    other = tl.data.read(rows(seed=1), label="click", split="order", columns=COLUMNS)
    with pytest.raises(TrainingError, match="its data is another, or was changed"):
        go(other)
    (tmp_path / "decision.json").write_text("{}")
    with pytest.raises(TrainingError, match="decision.json is damaged: it has no settings"):
        go()


def test_only_checkpoints_are_removed(task, quick, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    quick(task, checkpoint=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    (tmp_path / "state" / "search").mkdir(parents=True)
    for name in (
        "search/0.pt",
        "search/.0.pt.x1",
        "search/search.txt",
        "full.pt",
        ".fine.pt.k2",
        "decision.json",
    ):
        (tmp_path / "state" / name).write_text("")
    forget(tmp_path / "state")
    forget(tmp_path / "state")  # there is nothing
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(("metric", "factor"), [("auc", 0.0), ("log_loss", 50.0)])
def test_fine_tuning_never_leaves_the_model_worse(task, monkeypatch, metric, factor):
    """A factor of 50 makes the log loss worse, but leaves the AUC as it is."""
    cuts, fit = [], finetune.fit

    def ruin(model, *rest, **more):
        cuts.append(copy.deepcopy(model))
        run = fit(model, *rest, **more)
        *_, last = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
        with torch.no_grad():
            for parameter in last.parameters():
                parameter.mul_(factor)
        run.best_metric = METRICS[metric].gain(evaluate(model, task.valid)[metric])
        return run

    monkeypatch.setattr(finetune, "fit", ruin)
    training = replace(TRAINING, metric=metric, epochs=1)
    found = decide(task, model="mlp", training=training, share=0.5)
    (cut,) = cuts
    assert evaluate(found.model, task.valid) == evaluate(cut, task.valid)


@pytest.mark.parametrize("method", [GATES, "permutation"], ids=["leap", "permutation"])
def test_fine_tuning_continues_the_optimizers_of_the_model_that_is_pruned(
    task, monkeypatch, method
):
    runs = []
    carry_over = finetune.carry_over
    monkeypatch.setattr(
        finetune, "carry_over", lambda *given: runs.append(given[0]) or carry_over(*given)
    )
    training = replace(TRAINING, epochs=1)
    decide(task, model="mlp", method=method, training=training, share=0.5)
    assert runs
    assert all(optimizer.state for optimizer in runs)


def test_seeds_differ_and_repeat(task, quick):
    first, again, other = (quick(task, share=0.5, seed=seed) for seed in (1, 1, 2))
    assert first.record["metrics"] == again.record["metrics"]
    assert first.record["metrics"] != other.record["metrics"]
    assert first.record["seed"] == first.record["training"]["seed"] == 1


def test_a_small_time_limit_still_ends_with_a_complete_record(task):
    found = decide(task, model="mlp", training=replace(TRAINING, epochs=1000), time_limit=1e-3)
    assert found.record.keys() == KEYS
    assert json.dumps(found.record, allow_nan=False)
    assert len(found.record["history"]) == 2  # of the plain model and of the path


def test_stages_are_announced_in_their_order(task, quick):
    announced = []
    quick(task, share=0.5, on_stage=announced.append)
    assert announced == [
        "training with all fields",
        "searching",
        "preparing",
        "masking",
        "fine-tuning",
        "comparing",
    ]


def test_a_task_of_one_field(task):
    found = decide(task.only(["price"]), model="mlp", training=replace(TRAINING, epochs=1))
    assert found.selection.kept == ("price",)
    assert found.record["curve"]["points"] == [
        {"fields": 0, "dims": 0, "value": pytest.approx(0.7, abs=0.2)}
    ]


class Stop(Hook):
    def at_start(self, run):
        raise AssertionError("nothing should be trained")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"share": 0.5, "dims": 3},
            "Expected one of threshold, .*, worth and tolerance, but found share and dims",
        ),
        ({"share": 1.5}, "share must lie above 0 and not above 1"),
        ({"share": 0.1}, "share=0.1 leaves no field at all. Give at least 0.25"),
        ({"dims": 0}, "dims must be above 0"),
        ({"threshold": math.nan}, "threshold must be a number"),
        ({"tolerance": -0.5}, "tolerance must be at least 0, but is -0.5"),
        ({"worth": -1.0}, "worth must be at least 0, but is -1.0"),
        (
            {"worth": 0.1, "method": "sfs"},
            "worth= needs a search that measures worth, but SFS gives only scores. Use method=",
        ),
        (
            {"tolerance": 0.1, "method": "random"},
            "tolerance= needs a search with a path, but Random closes no fields and trains no "
            "plain model to mask them in. Use method='leap' or method='permutation', or share=",
        ),
        ({"time_limit": -1.0}, "time_limit must be a number above 0, but is -1.0"),
        (
            {"training": Training(batch=4096)},
            "at least one batch of 4,096 train rows, but found 1,920 rows. Lower batch=",
        ),
        ({"method": "laep"}, "There is no method 'laep'. Did you mean 'leap'"),
        ({"model": "dcm"}, "There is no backbone 'dcm'. Did you mean 'dcn'"),
    ],
)
def test_bad_settings_are_refused_before_any_training(task, settings, sentence):
    with pytest.raises(tl.TorchleapError, match=sentence):
        decide(task, **{"training": TRAINING, "callbacks": [Stop()], **settings})


def test_rows_that_cannot_be_measured_are_refused_before_any_training():
    frame = rows(60).with_columns(click=pl.Series([1, 0] * 24 + [0] * 12))
    with pytest.raises(
        tl.DataError,
        match="cannot be compared on these valid rows: AUC needs rows of both.*Give more rows",
    ):
        decide(
            tl.data.read(frame, label="click", split="order", columns=COLUMNS), callbacks=[Stop()]
        )
    frame = rows(60).with_columns(click=pl.Series([1, 0] * 30), user=pl.Series(range(60)))
    with pytest.raises(
        tl.DataError, match="cannot be compared on these valid rows: GAUC needs a group"
    ):
        decide(
            tl.data.read(frame, label="click", split="order", columns=COLUMNS, group="user"),
            callbacks=[Stop()],
        )


def test_an_interval_of_no_width_is_none(task):
    model = tl.retrain(task, model="mlp", training=replace(TRAINING, epochs=1)).model
    difference = asdict(evidence.compare(model, model, task).difference)
    assert difference == {"metric": "auc", "value": 0.0, "interval": None}


def test_few_rows_get_batches_that_can_be_normalised():
    frame = rows(80).with_columns(click=pl.Series([1, 0] * 40))
    few = tl.data.read(frame, label="click", split="order", columns=COLUMNS)
    assert suited_batch(few) == 32
    found = decide(few, model="mlp", share=0.5)
    assert found.record["training"]["batch"] == 32
    assert found.record["history"][0]["train_loss"] > 0
    tiny = tl.data.read(frame.head(20), label="click", split="order", columns=COLUMNS)
    assert suited_batch(tiny) == 16


def test_when_all_gates_close_the_scores_are_not_lost(task, tmp_path):
    def go(**more):
        return decide(
            task,
            model="mlp",
            method=PressureMethod(strength=50.0),
            training=TRAINING,
            checkpoint=tmp_path,
            **more,
        )

    found = go()
    assert found.selection.dropped == ()
    assert found.record["rule"] == {"threshold": 0.5}
    assert re.match(
        r"no field scores 0.5 or more, the best is '\w+' with 0\.\d\d$", found.record["undecided"]
    )
    assert (tmp_path / "full.pt").exists()
    again = go(share=0.5)
    assert len(again.selection.kept) == 2
    assert again.record["undecided"] is None
    assert again.selection.scores == found.selection.scores
    assert not (tmp_path / "full.pt").exists()


def test_where_the_rows_are_too_few_nothing_is_dropped_without_a_rule():
    few = tl.data.read(rows(60), label="click", split="order", columns=COLUMNS)
    found = decide(few, model="mlp", training=replace(TRAINING, batch=16, epochs=1))
    assert found.selection.dropped == ()
    assert re.match(
        r"6 test rows, \d of them positive, are too few to decide$", found.record["undecided"]
    )
    by_rule = decide(few, model="mlp", training=replace(TRAINING, batch=16, epochs=1), share=0.5)
    assert len(by_rule.selection.dropped) == 2
    assert by_rule.record["undecided"] is None


def test_positives_findings_source_and_command_are_recorded(task):
    finding = {
        "kind": "leak",
        "column": "item",
        "text": "gives the label away",
        "cure": "Leave it out.",
    }
    found = decide(
        task,
        model="mlp",
        training=replace(TRAINING, epochs=1),
        share=0.5,
        findings=[finding],
        source="clicks.csv",
        command="torchleap select clicks.csv",
    )
    assert found.record["findings"] == [finding]
    assert found.record["task"]["source"] == "clicks.csv"
    assert found.record["command"] == "torchleap select clicks.csv"
    assert found.record["task"]["positives"]["test"] == int(task.test.label.sum())


def test_weird_names_survive(tmp_path):
    names = {"price": "gate_", "user": "a,b=<script>", "item": "[red]it/em.é", "size": " "}
    weird = rows(800).rename(names)
    columns = {names[name]: kind for name, kind in COLUMNS.items()}
    found = decide(
        tl.data.read(weird, label="click", split="order", columns=columns),
        model="mlp",
        training=replace(TRAINING, epochs=1),
    )
    found.save(tmp_path)
    scores = torch.cat(list(Served.load(tmp_path).probabilities(weird.tail(80))))
    assert tl.auc(weird.tail(80)["click"].to_numpy(), scores) == pytest.approx(
        found.record["metrics"]["after"]["auc"]
    )
    assert set(found.record["trajectories"]["gates"]) == set(names.values())
