from dataclasses import replace

import pytest

from torchleap import TorchleapError
from torchleap.bench import Grid, Recipe
from torchleap.bench.grid import ALSO, PUBLISHED
from torchleap.methods import METHODS, Lasso, LeAPMethod, Permutation, PressureMethod
from torchleap.models import BACKBONES, benchmark
from torchleap.training.fit import Training

from .tiny import TINY

EVERYTHING = """
data = ["truth@0-1", "census"]
methods = ["lasso", "random", "lasso"]
models = ["mlp"]
shares = [1, 0.25]
search_seeds = 3
retrain_seeds = 4

[set.mine]
file = "clicks.csv"
label = "click"
group = "none"

[set.small]
kind = "truth"
rows = 600
widths = [1, 4]

[set.industrial]
rows = 5_000

[method.leap]
price_by = "dims"
steps = 40

[method.leap_pressure]
strength = "none"

[method.eager]
is = "leap_pressure"
strength = 0.9

[model.dcn]
dropout = 0.5

[model.narrow]
is = "mlp"
hidden = [8, 4]

[training]
epochs = 2
clip = "none"
"""


@pytest.fixture
def load(tmp_path):
    def loaded(text):
        (tmp_path / "grid.toml").write_text(text)
        return Grid.load(tmp_path / "grid.toml")

    return loaded


def test_a_file_may_contain_everything(load):
    grid = load(EVERYTHING)
    assert [recipe.name for recipe in grid.data] == [
        "truth@0",
        "truth@1",
        "census",
        "mine",
        "small",
        "industrial",
    ]
    assert grid.data[1] == Recipe("truth@1", "truth", {"seed": 1})
    assert grid.data[3] == Recipe(
        "mine", "file", {"file": "clicks.csv", "label": "click", "group": None}
    )
    assert grid.data[4] == Recipe("small", "truth", {"rows": 600, "widths": (1, 4)})
    assert grid.data[5] == Recipe("industrial", "industrial", {"rows": 5000})
    assert list(grid.methods) == ["lasso", "random", "leap", "leap_pressure", "eager"]
    assert grid.methods["lasso"] == Lasso()
    assert grid.methods["leap"] == LeAPMethod(price_by="dims", steps=40)
    assert grid.methods["leap_pressure"] == PressureMethod(strength=None)
    assert grid.methods["eager"] == PressureMethod(strength=0.9)
    assert grid.models == {
        "mlp": benchmark("mlp"),
        "dcn": replace(benchmark("dcn"), dropout=0.5),
        "narrow": replace(benchmark("mlp"), hidden=(8, 4)),
    }
    assert (grid.shares, grid.search_seeds, grid.retrain_seeds) == ((1, 0.25), 3, 4)
    assert grid.training == {"epochs": 2, "clip": None}
    assert grid.leap == "leap"


def test_what_a_file_leaves_out_is_usual(load):
    grid = load('data = ["census"]')
    assert grid == Grid.of(["census"])
    assert (list(grid.methods), list(grid.models)) == (list(METHODS), ["wide_deep"])
    assert (grid.shares, grid.search_seeds, grid.retrain_seeds) == ((0.5, 0.25), 2, 2)
    assert list(load('data = ["census"]\n[method.leap]').methods) == [
        "leap"
    ]  # own ones stand alone
    assert list(load('data = ["census"]\n[model.mlp]').models) == ["mlp"]


def test_a_word_may_stand_for_a_list_and_groups_for_their_members(load):
    grid = load('data = "truth@3"\nmethods = "paper"\nmodels = "all"')
    assert ([recipe.name for recipe in grid.data], tuple(grid.methods), list(grid.models)) == (
        ["truth@3"],
        PUBLISHED,
        list(BACKBONES),
    )
    assert Grid.of(["census"], ["permutation", "permutation_sample"]).methods == {
        "permutation": Permutation(),
        "permutation_sample": ALSO["permutation_sample"],
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('dat = ["census"]', "grid.toml has an unknown key 'dat'. Did you mean 'data'"),
        ("seeds = 3", "unknown key 'seeds'. Did you mean 'search_seeds'"),
        ("[metod.leap]", "unknown key 'metod'. Did you mean 'method'"),
        ('data = ["sensus"]', "There is no data set 'sensus'. Did you mean 'census'"),
        (
            'data = ["census"]\nmethods = ["laso"]',
            "There is no method 'laso'. Did you mean 'lasso'",
        ),
        ('data = ["census"]\nmodels = ["mpl"]', "There is no backbone 'mpl'. Did you mean 'mlp'"),
        (
            'data = ["census"]\n[method.leap_pressure]\nstrenght = 1',
            "PressureMethod has no setting 'strenght'. Did you mean 'strength'",
        ),
        (
            'data = ["census"]\n[method.leap]\nprice_bi = "dims"',
            "LeAPMethod has no setting 'price_bi'. Did you mean 'price_by'",
        ),
        (
            'data = ["census"]\n[method.leap]\nprice_by = "bytes"',
            "price_by must be one of field, dims, cost, but is 'bytes'",
        ),
        (
            'data = ["census"]\n[method.mine]\nis = "lep"',
            "There is no method 'lep'. Did you mean 'leap'",
        ),
        (
            'data = ["census"]\n[model.mlp]\nhiden = [3]',
            "has no setting 'hiden'. Did you mean 'hidden'",
        ),
        (
            'data = ["census"]\n[model.mine]\nis = "dnc"',
            "There is no backbone 'dnc'. Did you mean 'dcn'",
        ),
        (
            'data = ["census"]\n[training]\nepoch = 3',
            "Training has no setting 'epoch'. Did you mean 'epochs'",
        ),
        (
            'data = ["census"]\n[training]\nepochs = 0',
            "epochs must be a whole number of at least 1, but is 0",
        ),
        (
            'data = ["census"]\n[training]\nseed = 3',
            "counted by search_seeds and retrain_seeds: leave out seed",
        ),
        (
            '[set.mine]\nkind = "cencus"',
            "data 'mine': there is no kind 'cencus'. Did you mean 'census'",
        ),
        ("[set.mine]\nrows = 3", "data 'mine': there is no kind 'mine'."),
        ("data = [3]", "expected a list of names, data = [...], but found data = [3]."),
        (
            'data = ["census"]\nmethods = 3',
            "expected a list of names, methods = [...], but found methods = 3.",
        ),
        (
            'data = ["census"]\nmodels = [["mlp"]]',
            "expected a list of names, models = [...], but found",
        ),
        (
            'data = ["census"]\nshares = 0.5',
            "expected a list of numbers, shares = [...], but found shares = 0.5.",
        ),
        (
            'data = ["census"]\nshares = "0.5"',
            "expected a list of numbers, shares = [...], but found shares = '0.5'.",
        ),
        ('data = ["census"]\ntraining = 3', "expected a table [training], but found training = "),
        (
            'data = ["census"]\nmethod = "leap"',
            "expected tables [method.SOME_NAME], but found method = 'leap'.",
        ),
        ("[set]\nrows = 3", "expected tables [set.SOME_NAME], but found set = {'rows': 3}."),
        ("data = [", "grid.toml is not TOML: "),
        ("", "expected at least one of data, but found none"),
        ('data = ["census", "census"]', "expected a name for each data set, but found one twice"),
    ],
)
def test_a_mistake_in_a_file_is_reported_with_the_nearest_name(load, text, told):
    with pytest.raises(TorchleapError) as found:
        load(text)
    assert told in str(found.value)


def test_a_file_of_other_bytes_is_not_toml(tmp_path):
    (tmp_path / "grid.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(TorchleapError, match="is not TOML"):
        Grid.load(tmp_path / "grid.toml")


@pytest.mark.parametrize("share", [0, -0.5, 1.01, float("nan"), float("inf"), True, "0.5"])
def test_shares_lie_above_0_and_up_to_1(share):
    with pytest.raises(
        TorchleapError, match=r"share must (be a number|lie above 0 and not above 1), but is"
    ):
        Grid.of([TINY], shares=(0.5, share))


@pytest.mark.parametrize("name", ["search_seeds", "retrain_seeds"])
@pytest.mark.parametrize("value", [0, -1, 1.0, True, "2"])
def test_seeds_are_counted_in_whole_numbers(name, value):
    with pytest.raises(
        TorchleapError, match=f"{name} must be a whole number of at least 1, but is {value!r}"
    ):
        Grid.of([TINY], **{name: value})


def test_all_problems_are_reported_at_once():
    with pytest.raises(TorchleapError) as found:
        Grid.of([], [], [], shares=(), search_seeds=0)
    assert str(found.value).count("expected at least one of") == 4
    assert "search_seeds must be" in str(found.value)


def test_a_training_has_the_batch_of_its_data_and_gauc_chooses_where_there_are_groups(tmp_path):
    pl = pytest.importorskip("polars")
    data = TINY.load()
    assert Grid.of([TINY]).training_for(data, 3) == Training(batch=32, metric="auc", seed=3)
    assert Grid.of([TINY], training={"batch": 64, "epochs": 2}).training_for(data, 0) == Training(
        batch=64, epochs=2
    )
    rows = {
        "user": [n % 9 for n in range(200)],
        "item": [n % 7 for n in range(200)],
        "click": [n % 2 for n in range(200)],
    }
    pl.DataFrame(rows).write_csv(tmp_path / "clicks.csv")
    grouped = Recipe(
        "clicks", "file", {"file": str(tmp_path / "clicks.csv"), "label": "click", "group": "user"}
    ).load()
    assert Grid.of([TINY]).training_for(grouped, 0).metric == "gauc"
    assert (
        Grid.of([TINY], training={"metric": "log_loss"}).training_for(grouped, 0).metric
        == "log_loss"
    )


def test_others_are_compared_with_leap_or_else_with_the_first():
    assert Grid.of([TINY], ["lasso", "leap", "random"]).leap == "leap"
    assert Grid.of([TINY], ["lasso", "random"]).leap == "lasso"


def test_a_set_of_the_file_may_be_named_among_the_data(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text(
        'data = ["kdd", "truth@1"]\n[set.other]\nkind = "truth"\n'
        '[set.kdd]\nfile = "kdd.parquet"\nlabel = "income"\n'
    )
    grid = Grid.load(path)
    assert [recipe.name for recipe in grid.data] == ["kdd", "truth@1", "other"]
    assert grid.data[0].settings == {"file": "kdd.parquet", "label": "income"}


def test_a_set_of_the_file_takes_the_place_of_a_known_one_of_its_name(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text('data = ["census"]\n[set.census]\npath = "x"\n')
    (recipe,) = Grid.load(path).data
    assert recipe.settings == {"path": "x"}
