"""Pairs of gates whose product the model has not learned yet."""

import copy

import torch

from torchleap.gates.unlearned_pairs import UnlearnedPairs


def three_pairs():
    pairs = UnlearnedPairs(torch.zeros(4))
    pairs.note({(0, 1): 0.2, (1, 2): 0.5, (2, 3): 0.1})
    return pairs


def test_a_gate_has_the_largest_gain_of_its_open_pairs():
    pairs = three_pairs()
    is_open = torch.tensor([True, True, True, True])
    assert pairs.by_gate(is_open).tolist() == torch.tensor([0.2, 0.5, 0.5, 0.1]).tolist()
    is_open[1] = False
    assert pairs.by_gate(is_open).tolist() == torch.tensor([0.0, 0.0, 0.1, 0.1]).tolist()
    assert pairs.open_gains(is_open).tolist() == torch.tensor([0.1]).tolist()


def test_both_gates_share_what_their_pair_would_gain_when_one_closes():
    pairs = three_pairs()
    is_open = torch.tensor([True, True, True, True])
    pairs.close(1, is_open)
    assert pairs.credit.tolist() == torch.tensor([0.1, 0.25, 0.25, 0.0]).tolist()
    is_open[1] = False
    pairs.close(0, is_open)
    assert pairs.credit.tolist() == torch.tensor([0.1, 0.25, 0.25, 0.0]).tolist()


def test_a_state_is_restored():
    pairs = three_pairs()
    pairs.close(3, torch.ones(4, dtype=torch.bool))
    other = UnlearnedPairs(torch.zeros(4))
    other.load_state_dict(copy.deepcopy(pairs.state_dict()))
    assert other.gains == pairs.gains
    assert torch.equal(other.credit, pairs.credit)
