"""A path whose gates close by turns, by a worth that is measured from outside."""

import copy

import pytest
import torch
from torch import nn

import torchleap as tl
from torchleap._common.states import StateError
from torchleap.gates.turn_trainer import (
    AT_ONCE,
    FieldWorth,
    PaidWorth,
    TurnTrainer,
    turns_of,
)

TURN = 8


def trainer_of(fields, **settings):
    fields = tl.Fields(fields)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(fields.dims, 1))
    plugin = tl.attach(model, fields, at="0", seed=0)
    trainer = TurnTrainer(model, plugin.gates, steps=400, turn=TURN, **settings)
    trainer.schedule.begin(0.5)
    return trainer


def letters(count):
    return {f"f{number:02}": 1 for number in range(count)}


def noted(trainer, worth, error=0.0):
    """Begin a turn with a worth of each open field by name."""
    found = {name: FieldWorth(worth[name], error, worth[name]) for name in trainer.open_fields()}
    trainer.note_worth(found)


def run(trainer, worth, error=0.0, turns=100):
    for _ in range(turns):
        if trainer.is_finished:
            return
        noted(trainer, worth, error)
        for _ in range(TURN):
            trainer.step()


def closed(trainer):
    names = trainer.gates.known_fields().names
    return [names[closing.gate] for closing in trainer.closings]


def test_fields_close_in_the_order_of_their_worth_a_tenth_in_each_turn():
    trainer = trainer_of(letters(20))
    worth = {name: 0.01 * (1 + place) for place, name in enumerate(letters(20))}
    run(trainer, worth, turns=1)
    assert closed(trainer) == ["f00", "f01"]
    run(trainer, worth)
    assert closed(trainer) == list(worth)[:-1]
    assert trainer.open_fields() == ("f19",)
    assert trainer.is_finished
    assert list(trainer.scores()) == list(worth)
    for name, score in trainer.scores().items():
        assert score == pytest.approx(worth[name], rel=1e-6)
        assert trainer.worth()[name].nats == pytest.approx(worth[name], rel=1e-6)


def test_a_gate_closes_for_twice_its_worth_and_prices_never_fall():
    trainer = trainer_of(letters(3))
    run(trainer, {"f00": 0.05, "f01": 0.2, "f02": 0.4})
    prices = [closing.price for closing in trainer.closings]
    assert prices == pytest.approx([0.1, 0.4], rel=0.01)


def test_of_many_useless_fields_a_quarter_closes_at_once():
    trainer = trainer_of(letters(20))
    run(trainer, {name: -0.01 * (1 + place) for place, name in enumerate(letters(20))}, turns=1)
    assert len(trainer.closings) == AT_ONCE * 20
    assert set(closed(trainer)) == {"f15", "f16", "f17", "f18", "f19"}


def test_a_field_has_the_benefit_of_the_doubt():
    trainer = trainer_of(letters(4))
    errors = {"f00": 0.0, "f01": 0.05, "f02": 0.0, "f03": 0.0}
    worth = {"f00": 0.01, "f01": 0.005, "f02": 0.1, "f03": 0.2}
    trainer.note_worth({name: FieldWorth(worth[name], errors[name], worth[name]) for name in worth})
    for _ in range(TURN):
        trainer.step()
    assert closed(trainer) == ["f00"]


def test_a_gate_on_its_way_returns_if_its_field_turns_out_to_be_worth_more():
    trainer = trainer_of(letters(3))
    noted(trainer, {"f00": 0.01, "f01": 0.2, "f02": 0.4})
    trainer.step()
    fallen = trainer.gates.scores()["f00"]
    assert fallen < 0.95
    noted(trainer, {"f00": 0.3, "f01": 0.02, "f02": 0.4})
    for _ in range(TURN):
        trainer.step()
    assert trainer.gates.scores()["f00"] > fallen
    assert closed(trainer) == ["f01"]
    assert trainer.worth()["f00"].nats == pytest.approx(0.01), "the other one was half paid for"


def test_a_memorised_field_closes_at_once_with_the_worth_it_would_have():
    fields = [
        tl.Field("a", 1, protected=True),
        tl.Field("b", 1, group="g"),
        tl.Field("c", 1, group="g"),
        tl.Field("stamp", 1),
    ]
    trainer = trainer_of(fields)
    worth = FieldWorth(-0.2, 0.01, -0.2)
    trainer.close_memorised({"stamp": worth, "a": worth, "b": worth})
    assert trainer.open_fields() == ("a", "b", "c"), "protected, and parts of a group"
    noted(trainer, {"a": 0.1, "b": 0.1, "c": 0.1, "stamp": 0.0})
    assert trainer.worth()["stamp"].nats == pytest.approx(-0.2)
    assert trainer.worth()["stamp"].error == pytest.approx(0.01)


def test_gates_that_have_arrived_rest_until_the_next_turn():
    trainer = trainer_of(letters(3))
    noted(trainer, {"f00": 0.01, "f01": 0.2, "f02": 0.4})
    assert not trainer.is_at_rest
    for _ in range(TURN // 2 + 1):
        trainer.step()
    assert closed(trainer) == ["f00"]
    assert trainer.is_at_rest
    noted(trainer, {"f01": 0.2, "f02": 0.4})
    assert not trainer.is_at_rest


def test_what_was_known_of_a_field_stays_until_it_is_measured_again():
    trainer = trainer_of(letters(3))
    noted(trainer, {"f00": 0.01, "f01": 0.2, "f02": 0.4})
    trainer.note_worth({"f00": FieldWorth(0.02, 0.0, 0.02)})
    worth = {name: one.nats for name, one in trainer.worth().items()}
    assert worth == pytest.approx({"f00": 0.02, "f01": 0.2, "f02": 0.4})
    for _ in range(TURN):
        trainer.step()
    assert closed(trainer) == ["f00"]


def test_while_the_price_waits_nothing_closes():
    trainer = trainer_of(letters(3))
    trainer.evaluated(torch.full((100,), 0.5))
    trainer.evaluated(torch.full((100,), 0.4))
    noted(trainer, {"f00": 0.01, "f01": 0.2, "f02": 0.4})
    price = trainer.price
    for _ in range(TURN):
        trainer.step()
    assert not trainer.closings
    assert trainer.price == price
    assert trainer.schedule.waited == TURN


def test_useless_fields_score_0_and_harmful_ones_less():
    trainer = trainer_of(letters(5))
    worth = {"f00": 1e-4, "f01": -1e-4, "f02": -0.05, "f03": 0.02, "f04": 0.3}
    run(trainer, worth, error=2e-4)
    scores = trainer.scores()
    assert scores["f00"] == scores["f01"] == 0.0
    assert scores["f02"] == pytest.approx(-0.05)
    assert 0 < scores["f03"] < scores["f04"]


def test_a_worth_that_may_be_noticeable_counts_though_it_is_uncertain():
    trainer = trainer_of(letters(3))
    run(trainer, {"f00": 0.0005, "f01": 0.1, "f02": 0.3}, error=0.01)
    assert 0 < trainer.scores()["f00"] < trainer.scores()["f01"]


def test_of_fields_of_equal_worth_the_most_expensive_ones_score_less():
    trainer = trainer_of({"wide": 9, "narrow": 1, "middle": 3, "best": 4})
    run(trainer, {"wide": 0.102, "narrow": 0.1, "middle": 0.101, "best": 0.3}, error=0.003)
    assert closed(trainer) == ["narrow", "middle", "wide"]
    scores = trainer.scores()
    assert sorted(scores, key=scores.get) == ["wide", "middle", "narrow", "best"]
    imprecise = trainer_of({"wide": 9, "narrow": 1, "middle": 3, "best": 4})
    run(imprecise, {"wide": 0.102, "narrow": 0.1, "middle": 0.101, "best": 0.3}, error=0.05)
    scores = imprecise.scores()
    assert sorted(scores, key=scores.get) == ["narrow", "middle", "wide", "best"]


def test_fields_that_share_a_worth_are_ordered_by_their_share():
    trainer = trainer_of(letters(4))
    joint = FieldWorth(alone=0.06, error=0.0, share=0.03)
    found = {"f00": joint, "f01": joint, "f02": FieldWorth(0.05, 0.0, 0.05)}
    found["f03"] = FieldWorth(0.09, 0.0, 0.09)
    trainer.note_worth(found)
    for _ in range(TURN):
        trainer.step()
    assert set(closed(trainer)) == {"f00", "f01"}, "both halves close in the same turn"
    assert trainer.worth()["f00"].nats == pytest.approx(0.06)
    assert trainer.scores()["f00"] == pytest.approx(0.03)


def test_protected_fields_stay_and_those_of_a_group_add_up():
    fields = [
        tl.Field("a", 1, protected=True),
        tl.Field("b", 1, group="g"),
        tl.Field("c", 1, group="g"),
        tl.Field("d", 1),
    ]
    trainer = trainer_of(fields)
    run(trainer, {"a": 0.0, "b": 0.1, "c": 0.1, "d": 0.15})
    assert trainer.open_fields() == ("a",)
    assert [closing.gate for closing in trainer.closings] == [2, 1]
    assert trainer.worth()["b"].nats == pytest.approx(0.2)


def test_a_dear_field_closes_first_and_scores_by_worth_per_cost():
    trainer = trainer_of({"wide": 9, "narrow": 1}, price_by="dims")
    run(trainer, {"wide": 0.3, "narrow": 0.1})
    assert closed(trainer) == ["wide"]
    assert trainer.scores()["narrow"] > trainer.scores()["wide"]


def test_a_path_that_is_resumed_gives_the_same_bits():
    worth = {name: 0.01 * (1 + place) for place, name in enumerate(letters(9))}
    complete = trainer_of(letters(9))
    run(complete, worth, error=0.002)
    first = trainer_of(letters(9))
    run(first, worth, error=0.002, turns=3)
    other = trainer_of(letters(9))
    other.gates.load_state_dict(first.gates.state_dict())
    other.load_state_dict(copy.deepcopy(first.state_dict()))
    run(other, worth, error=0.002)
    assert other.closings == complete.closings
    assert other.scores() == complete.scores()
    assert other.worth() == complete.worth()


def test_a_state_of_other_gates_is_refused():
    trainer = trainer_of(letters(3))
    state = trainer.state_dict()
    state["worth"]["share"] = torch.zeros(4)
    with pytest.raises(StateError, match="share in the worth of the fields has another shape"):
        trainer.load_state_dict(state)


def test_a_turn_has_at_least_one_step():
    trainer = trainer_of(letters(3))
    with pytest.raises(tl.TorchleapError, match="turn must be"):
        TurnTrainer(trainer.model, trainer.gates, steps=10, turn=0)


def test_gates_do_not_move_while_they_warm_up():
    model = nn.Sequential(nn.Linear(3, 1))
    plugin = tl.attach(model, letters(3), at="0", seed=0, warmup=2)
    trainer = TurnTrainer(model, plugin.gates, steps=400, turn=TURN)
    noted(trainer, {"f00": -0.01, "f01": 0.2, "f02": 0.4})
    trainer.step()
    assert trainer.done == 0
    for _ in range(4):
        model(torch.randn(5, 3))
    trainer.step()
    assert trainer.done == 1


def test_the_number_of_turns_grows_slowly():
    assert turns_of(1) == 0
    assert turns_of(2) == 1
    assert turns_of(1000) < 60


def test_a_cheap_field_that_may_be_worth_something_does_not_outlast_a_dear_one_that_surely_is():
    trainer = trainer_of({"dear": 9, "cheap": 1, "best": 1}, price_by="dims")
    worth = {"dear": 0.15, "cheap": -0.004, "best": 0.3}
    found = {name: FieldWorth(worth[name], 0.011, worth[name]) for name in worth}
    trainer.note_worth(found)
    for _ in range(TURN):
        trainer.step()
    assert closed(trainer) == ["cheap"]


def test_the_worth_is_what_closing_costs_and_its_interval_covers_the_noise_of_training():
    fields = [tl.Field("a", 1, group="g"), tl.Field("b", 1, group="g")]
    fields += [tl.Field(name, 1) for name in "cdef"]
    trainer = trainer_of(fields, noise=0.04)
    worth = {"a": 0.01, "b": 0.01, "c": 0.001, "d": 0.3, "e": 0.4, "f": 0.5}
    noted(trainer, worth)
    assert trainer.closing_fields() == [("c",)]
    trainer.note_paid({("c",): PaidWorth(0.0007, 0.03)})
    for _ in range(TURN):
        trainer.step()
    noted(trainer, worth)
    assert trainer.closing_fields() == [("a", "b")], "a gate of two fields"
    trainer.note_paid({("a", "b"): PaidWorth(0.015, 0.0)})
    found = trainer.worth()
    assert found["c"].nats == pytest.approx(0.0007)
    assert found["c"].error == pytest.approx(0.05), "0.03 and 0.04"
    assert found["a"] == found["b"]
    assert found["a"].nats == pytest.approx(0.015)
    assert found["d"].nats == pytest.approx(0.3), "as measured, while nothing was paid"
    trainer.step()
    assert trainer.closing_fields() == [], "it is on its way already"
    other = trainer_of(fields, noise=0.04)
    other.load_state_dict(trainer.state_dict())
    assert other.worth() == found


def test_the_noise_of_training_is_not_negative():
    with pytest.raises(tl.TorchleapError, match="noise"):
        trainer_of(letters(3), noise=-1.0)
