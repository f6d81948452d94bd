import copy
import json
from dataclasses import replace

import pytest
import torch

import torchleap as tl
from torchleap import Report, TorchleapError
from torchleap.bench import Grid, Prunings, Runner, record_of, roi
from torchleap.bench.prune import FullTrial, RoiTrial, fine_tuned
from torchleap.bench.statistics import Sample, mean_of
from torchleap.bench.tables import signed
from torchleap.bench.trials import SearchTrial
from torchleap.methods import Permutation, Random, Shark
from torchleap.pipeline.prune import with_means
from torchleap.selection import select
from torchleap.training.fit import _Loop, evaluate

from .tiny import MODEL, ONCE, TINY, TRAINING, lines_of

METHODS = ("permutation", "shark", "random", "none")
PRUNINGS = Prunings(fractions=(0.0, 0.2, 0.5), steps=5)


def trainings(patch):
    """Counts the trainings that were done, not those that were loaded; by their learning rate."""
    rates, usual = [], _Loop._train

    def counted(self):
        rates.append(self.run.training.lr)
        usual(self)

    patch.setattr(_Loop, "_train", counted)
    return rates


@pytest.fixture(scope="module")
def grid():
    return Grid.of([TINY], METHODS, search_seeds=2, training=ONCE)


@pytest.fixture(scope="module")
def done(grid, tmp_path_factory):
    runner = Runner(tmp_path_factory.mktemp("roi"))
    with pytest.MonkeyPatch.context() as patch:
        rates = trainings(patch)
        (found,) = roi(grid, runner, PRUNINGS)
    return found, runner, rates


def test_the_plain_model_is_trained_once_for_each_seed_and_lent(done):
    _, _, rates = done
    plain = [rate for rate in rates if rate == TRAINING.lr]
    assert len(plain) == 2
    assert (
        len(rates) - len(plain) == 2 + 3 * 2 * 3
    )  # fine-tuning: of all fields, and of three methods at three shares
    assert set(rates) - set(plain) == {0.3 * TRAINING.lr}


@pytest.mark.parametrize(
    "method", [Permutation(), Permutation(fraction=0.5), Shark(), Shark(rounds=2), Random()]
)
def test_scores_by_the_lent_model_are_those_of_a_search_by_itself(tmp_path, method):
    data = TINY.load()
    trial = RoiTrial(
        TINY, MODEL, replace(TRAINING, seed=1), method, Prunings(fractions=(0.5,), steps=0)
    )
    found = trial.run(data, tmp_path / "state" / "trial")
    assert (
        found["scores"]
        == tl.search(data.task, model=MODEL, method=method, training=TRAINING, seed=1).scores
    )


@pytest.mark.parametrize(
    ("method", "lent"), [(Shark(), True), (Permutation(), True), (Random(), False)]
)
def test_the_time_of_the_loan_counts_as_the_methods_own(tmp_path, monkeypatch, method, lent):
    data, prunings = TINY.load(), Prunings(fractions=(0.5,), steps=0)
    scores = dict.fromkeys(data.task.fields.names, 1.0)
    monkeypatch.setattr(SearchTrial, "run", lambda *_: {"scores": scores, "seconds": 100.0})
    plain = FullTrial(TINY, MODEL, TRAINING, prunings).run(data, tmp_path / "state" / "full")[
        "seconds"
    ]
    found = RoiTrial(TINY, MODEL, TRAINING, method, prunings).run(
        data, tmp_path / "state" / "trial"
    )["seconds"]
    assert plain > 0
    assert found == (100.0 + plain if lent else 100.0)


def test_fractions_of_the_dimensions_are_removed_by_the_scores(done):
    found, *_ = done
    fields = found.data.task.fields
    for results in found.methods.values():
        for result in results.values():
            for share, point in zip(PRUNINGS.fractions, result["points"], strict=True):
                kept = select(fields, result["scores"], dims=round((1 - share) * 36))
                assert (point["fraction"], point["dropped"]) == (share, list(kept.dropped))
                assert (
                    point["dims"]
                    == sum(fields[name].width for name in point["dropped"])
                    >= round(share * 36)
                )
                assert point["fields"] == len(point["dropped"])
            assert result["points"][0]["dropped"] == []


def masked_by_hand(task, model, dropped):
    """Return the test AUC of a model that sees means in place of the dropped fields."""
    with torch.no_grad():
        mean = model.inputs(*next(iter(task.train.batches(len(task.train)))).inputs).mean(0)
        batch = next(iter(task.test.batches(len(task.test))))
        x = model.inputs(*batch.inputs).clone()
        for name in dropped:
            x[:, task.fields.columns(name)] = mean[task.fields.columns(name)]
        return tl.auc(batch.label, model.net(x))


def test_a_pruned_model_sees_means_in_place_of_dropped_fields(done, grid):
    found, *_ = done
    task = found.data.task
    for seed in range(2):
        plain = tl.retrain(
            task, model=MODEL, training=grid.training_for(found.data, seed), seed=seed
        )
        assert found.full[seed]["pruned"]["auc"] == plain.metrics["test_auc"]
        for results in found.methods.values():
            for point in results[seed]["points"]:
                assert point["pruned"]["auc"] == pytest.approx(
                    masked_by_hand(task, plain.model, point["dropped"]), abs=1e-6
                )


def test_differences_are_to_the_model_of_all_fields_after_the_same_fine_tuning(done):
    found, *_ = done
    for stage in ("pruned", "tuned"):
        for method, means in found.differences(stage).items():
            for place, mean in enumerate(means):
                own = [
                    found.methods[method][seed]["points"][place][stage]["auc"] for seed in range(2)
                ]
                assert mean.value == pytest.approx(
                    sum(own[s] - found.full[s][stage]["auc"] for s in range(2)) / 2
                )
            assert means[0].value == 0  # nothing was pruned, and the fine-tuning was the same
    assert any(
        found.full[seed]["pruned"] != found.full[seed]["tuned"] for seed in range(2)
    )  # else it would show nothing


def test_tables_and_curves_show_the_differences_and_what_it_took(done, grid):
    found, runner, _ = done
    pruned, tuned, cost = found.tables()
    assert "without fine-tuning: tiny, wide_deep" in pruned.title
    assert "after 5 steps of fine-tuning: tiny, wide_deep" in tuned.title
    assert pruned.columns == ("pruned", "dims", "permutation", "shark", "random")
    assert tuned.rows[2] == (
        "50%",
        "18",
        *(signed(means[2]) for means in found.differences("tuned").values()),
    )
    level = mean_of(
        [Sample(str(seed), found.full[seed]["tuned"]["auc"]) for seed in range(2)]
    ).value
    assert tuned.notes[0] == f"All fields: {level:.4f}; 36 dimensions, 14 fields."
    assert [row[0] for row in cost.rows] == ["permutation", "shark", "random"]
    curves = found.curves()
    assert [series["name"] for series in curves[1]["series"]] == ["permutation", "shark", "random"]
    mean = found.differences("pruned")["shark"][2]
    assert curves[0]["series"][1]["points"][2] == [50.0, mean.value, mean.low, mean.high]
    assert (
        "without fine-tuning"
        in Report(record_of("Pruning", found.tables(), curves, grid, runner)).html()
    )


def with_dims(found, dims):
    """The same, but that many dimensions went at the last share for shark."""
    points = {
        seed: [*own["points"][:-1], own["points"][-1] | {"dims": dims}]
        for seed, own in found.methods["shark"].items()
    }
    shark = {seed: own | {"points": points[seed]} for seed, own in found.methods["shark"].items()}
    return replace(found, methods={**found.methods, "shark": shark})


def test_a_fraction_that_complete_fields_cannot_meet_is_shown_in_brackets(done):
    found, *_ = done
    wide = with_dims(found, 21)  # of 36
    table = wide.tables()[0]
    mean = wide.differences("pruned")["shark"][2]
    assert table.rows[2][1:4:2] == ("18", f"{signed(mean)} (58%)")
    assert (
        table.notes[-1]
        == "(in brackets): the fraction that was removed, where it rounds to another; "
        "only complete fields are removed."
    )
    assert wide.curves()[0]["series"][1]["points"][2][0] == pytest.approx(100 * 21 / 36)
    same = with_dims(found, 18).tables()[0]
    assert same.rows[2][3] == signed(mean)


def test_one_seed_claims_no_interval(done):
    found, *_ = done
    alone = replace(
        found,
        full={0: found.full[0]},
        methods={method: {0: own[0]} for method, own in found.methods.items()},
    )
    assert (
        alone.tables()[0]
        .notes[1]
        .startswith("One seed, so there is no interval; paired with the model of all fields")
    )
    assert found.tables()[0].notes[1].startswith("Mean and 95 % interval over 2 seeds; paired")


def test_files_that_only_the_run_needed_are_removed(done):
    _, runner, _ = done
    assert list((runner.folder / "state").iterdir()) == []
    assert {path.name for path in runner.folder.iterdir()} == {"state", "trials.jsonl"}


def test_a_second_run_trains_nothing(done, grid, monkeypatch):
    found, runner, _ = done
    rates, before = trainings(monkeypatch), lines_of(runner.folder)
    (again,) = roi(grid, Runner(runner.folder), PRUNINGS)
    assert (again.methods, again.full, rates, lines_of(runner.folder)) == (
        found.methods,
        found.full,
        [],
        before,
    )
    assert len(before) == 2 + 3 * 2


def test_without_steps_nothing_is_fine_tuned(tmp_path, monkeypatch):
    rates = trainings(monkeypatch)
    grid = Grid.of([TINY], ("random", "permutation"), search_seeds=1, training=ONCE)
    (found,) = roi(grid, Runner(tmp_path), Prunings(fractions=(0.5,), steps=0))
    assert rates == [TRAINING.lr]
    assert found.full[0]["tuned"] is found.methods["random"][0]["points"][0]["tuned"] is None
    assert [table.title.split(":")[0] for table in found.tables()] == [
        "AUC difference by fraction of dimensions pruned, without fine-tuning",
        "Seconds of a search",
    ]
    assert len(found.curves()) == 1


@pytest.mark.parametrize("metric", ["auc", "log_loss"])
def test_fine_tuning_is_taken_back_where_it_is_worse_on_validation_rows(metric):
    data = replace(TINY, settings={**TINY.settings, "rows": 1500}).load()
    training = replace(TRAINING, epochs=3, lr=0.01, metric=metric)
    plugin = with_means(tl.retrain(data.task, model=MODEL, training=training).model, data.task, 0)
    before = copy.deepcopy(plugin.model.state_dict())
    kept = select(
        data.task.fields,
        {name: float(name in data.useful) for name in data.task.fields.names},
        share=0.5,
    )
    cut = plugin.prune(kept, example=next(iter(data.task.valid.batches(60))).inputs)
    gains = []
    for rate, seed in ((0.03, 0), (0.1, 1), (0.3, 2), (100.0, 0), (100.0, 1), (100.0, 2)):
        trial = FullTrial(TINY, MODEL, replace(training, seed=seed), Prunings(steps=5, rate=rate))
        after = fine_tuned(trial, data, plugin, kept)
        change = evaluate(after, data.task.valid)[metric] - evaluate(cut, data.task.valid)[metric]
        gains.append(-change if metric == "log_loss" else change)
        same = all(
            torch.equal(tensor, after.state_dict()[name])
            for name, tensor in cut.state_dict().items()
        )
        assert same == (gains[-1] == 0), gains
    assert min(gains) == 0 < max(gains), (
        gains
    )  # some were better, some were taken back, none is worse
    assert all(
        torch.equal(tensor, plugin.model.state_dict()[name]) for name, tensor in before.items()
    )


def refuse(trial, seed, monkeypatch):
    usual = trial.run

    def run(self, found, state):
        if self.training.seed == seed and (trial is FullTrial or isinstance(self.method, Random)):
            raise TorchleapError("Not this one.")
        return usual(self, found, state)

    monkeypatch.setattr(trial, "run", run)


def test_a_failed_search_leaves_the_others_and_the_models_to_resume_from(tmp_path, monkeypatch):
    grid = Grid.of([TINY], ("random", "shark"), search_seeds=2, training=ONCE)
    prunings = Prunings(fractions=(0.5,), steps=0)
    with monkeypatch.context() as patch:
        refuse(RoiTrial, 1, patch)
        runner = Runner(tmp_path)
        (found,) = roi(grid, runner, prunings)
    assert (list(found.methods["random"]), list(found.methods["shark"])) == ([0], [0, 1])
    assert list(runner.failures.values()) == ["tiny: prune by random, seed 1: Not this one."]
    assert len(list(tmp_path.glob("state/full-*.pt"))) == 2
    rates = trainings(monkeypatch)
    (again,) = roi(grid, Runner(tmp_path), prunings)
    assert (rates, list(again.methods["random"]), list(tmp_path.glob("state/*"))) == (
        [],
        [0, 1],
        [],
    )


def test_pairs_stay_pairs_when_the_model_of_all_fields_fails_for_one_seed(
    tmp_path, monkeypatch, done
):
    refuse(FullTrial, 0, monkeypatch)
    (found,) = roi(
        Grid.of([TINY], ("random",), search_seeds=2, training=ONCE), Runner(tmp_path), PRUNINGS
    )
    complete, *_ = done
    assert (list(found.full), list(found.methods["random"])) == ([1], [1])
    own, full = (
        complete.methods["random"][1]["points"][2]["pruned"]["auc"],
        complete.full[1]["pruned"]["auc"],
    )
    assert found.differences("pruned")["random"][2].value == own - full
    assert len(found.tables()) == 3
    assert found.curves()[0]["series"][0]["points"][2] == [
        50.0,
        own - full,
        None,
        None,
    ]  # one seed has no interval


def test_without_any_model_of_all_fields_there_is_nothing_to_compare_with(tmp_path, monkeypatch):
    refuse(FullTrial, 0, monkeypatch)
    with pytest.raises(
        TorchleapError,
        match="No model of all fields could be trained: tiny: train on all fields, seed 0: Not",
    ):
        roi(Grid.of([TINY], ("random",), search_seeds=1, training=ONCE), Runner(tmp_path), PRUNINGS)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"fractions": (0.5, 1.0)}, r"each a number of at least 0 and below 1\), but is \(0.5, 1"),
        ({"fractions": (-0.1,)}, r"each a number of at least 0 and below 1\), but is \(-0.1,"),
        ({"fractions": ()}, "expected at least one fraction to prune, but found none"),
        ({"steps": -1}, "steps must be a whole number of at least 0, but is -1"),
        ({"steps": 1.5}, "steps must be a whole number of at least 0, but is 1.5"),
        ({"rate": 0}, "rate must be a number above 0, but is 0"),
    ],
)
def test_prunings_that_make_no_sense_are_refused(settings, told):
    with pytest.raises(TorchleapError, match=told):
        Prunings(**settings)


def test_a_killed_search_resumes_with_the_model_that_was_lent(tmp_path, monkeypatch):
    data = TINY.load()
    trial = RoiTrial(TINY, MODEL, TRAINING, Shark(), Prunings(fractions=(0.5,), steps=0))

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Shark, "changes", killed)
        with pytest.raises(KeyboardInterrupt):
            trial.run(data, tmp_path / "state" / "trial")
    (lent,), (full,) = tmp_path.glob("state/trial/search/*.pt"), tmp_path.glob("state/full-*.pt")
    assert lent.samefile(full)
    rates = trainings(monkeypatch)
    assert json.dumps(trial.run(data, tmp_path / "state" / "trial")["points"])
    assert rates == []
    assert full.exists()
