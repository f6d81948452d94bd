import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchleap import TorchleapError, auc
from torchleap.data import KnownTruth

TRUTH = KnownTruth(widths=(1, 8, 64), pair_widths=(1, 4), seed=3)
X, Y = TRUTH.draw(20_000, seed=1)


def block(name):
    return X[:, TRUTH.fields.columns(name)]


def test_the_same_seeds_give_the_same_rows_and_others_do_not():
    x, y = KnownTruth(widths=(1, 8, 64), pair_widths=(1, 4), seed=3).draw(20_000, seed=1)
    assert torch.equal(x, X)
    assert torch.equal(y, Y)
    assert not torch.equal(TRUTH.draw(100, seed=2)[0], X[:100])
    assert not torch.equal(
        KnownTruth(widths=(1, 8, 64), pair_widths=(1, 4), seed=4).draw(100, seed=1)[0], X[:100]
    )


@given(st.lists(st.integers(1, 40), min_size=1, max_size=3, unique=True), st.integers(0, 99))
def test_roles_cover_every_field_and_widths_are_as_asked(widths, seed):
    truth = KnownTruth(widths=tuple(widths), seed=seed)
    x, y = truth.draw(50, seed=0)
    assert x.shape == (50, truth.fields.dims)
    assert set(y.tolist()) <= {0.0, 1.0}
    assert list(truth.role) == list(truth.fields.names)
    for width in widths:
        assert truth.fields[f"noise_sparse_{width}"].width == width
    assert set(truth.useful) | set(truth.useless) | {f"copy_{width}" for width in widths} == set(
        truth.role
    )


@pytest.mark.parametrize("width", [1, 8, 64])
def test_sparse_fields_are_99_percent_default_and_dense_ones_are_not(width):
    for kind in ("main", "noise"):
        active = block(f"{kind}_sparse_{width}").ne(0).any(1).float().mean()
        assert 0.005 < active < 0.015
        assert block(f"{kind}_dense_{width}").ne(0).all()


@pytest.mark.parametrize("width", [1, 8, 64])
def test_a_copy_is_a_rotation_with_a_little_noise(width):
    source, copied = block(f"main_dense_{width}"), block(f"copy_{width}")
    rotation = torch.linalg.lstsq(source, copied).solution
    torch.testing.assert_close(rotation @ rotation.T, torch.eye(width), atol=0.03, rtol=0)
    assert float((copied - source @ rotation).std()) == pytest.approx(0.1, abs=0.01)


def test_constants_are_constant():
    assert block("constant_1").std() == 0
    assert block("constant_8").std() == 0


def linear_auc(name):
    """How well the field alone predicts, on rows that the fit has not seen."""
    half = len(Y) // 2
    x = torch.cat([block(name), torch.ones(len(Y), 1)], 1)
    weight = torch.linalg.lstsq(x[:half], Y[:half, None]).solution
    return auc(Y[half:], (x[half:] @ weight)[:, 0])


def test_main_effects_predict_noise_and_single_members_of_pairs_do_not():
    for width in (1, 8, 64):
        assert linear_auc(f"main_dense_{width}") > 0.57
        assert linear_auc(f"noise_dense_{width}") < 0.53
        active = block(f"main_sparse_{width}").ne(0).any(1)
        assert float((Y[active] - 0.5).abs().mean()) == 0.5
    assert linear_auc("pair_1_a") < 0.53


def test_a_sparse_useful_field_decides_most_labels_where_it_is_active():
    truth = KnownTruth(
        widths=(1,), pair_widths=(), sparse_effect=20.0, dense_effect=0.0, active=0.2
    )
    x, y = truth.draw(5000, seed=0)
    values = x[:, truth.fields.columns("main_sparse_1")][:, 0]
    active = values != 0
    share = torch.stack([y[active & (values == value)].mean() for value in values[active].unique()])
    assert ((share - 0.5).abs() > 0.3).float().mean() > 0.7


def test_a_pair_matters_through_its_product():
    truth = KnownTruth(widths=(1,), pair_widths=(1,), pair_effect=3.0, dense_effect=0.1)
    x, y = truth.draw(5000, seed=0)
    a, b = (x[:, truth.fields.columns(f"pair_1_{which}")][:, 0] for which in "ab")
    product = auc(y, a * b)
    assert max(product, 1 - product) > 0.8
    assert abs(auc(y, a) - 0.5) < 0.05


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"widths": ()}, "widths must have at least one width, but has none"),
        ({"widths": (0,)}, "widths must be a tuple .each a whole number of at least 1., but is"),
        ({"active": 0.0}, "active must be a number above 0 and below 1, but is 0.0"),
        ({"active": 1.0}, "active must be a number above 0 and below 1, but is 1.0"),
    ],
)
def test_impossible_worlds_are_refused(bad, message):
    with pytest.raises(TorchleapError, match=message):
        KnownTruth(**bad)
