import pytest

from torchleap import TorchleapError
from torchleap.bench import Recipe, file_recipe, industrial_recipe
from torchleap.bench.sets import KINDS, described, named

from .tiny import TINY

pl = pytest.importorskip("polars")


def test_made_sets_carry_seeds():
    assert named("truth") == [Recipe("truth", "truth")]
    assert named("truth@0-2") == [
        Recipe(f"truth@{seed}", "truth", {"seed": seed}) for seed in range(3)
    ]
    assert named("industrial@12") == [Recipe("industrial@12", "industrial", {"seed": 12})]
    assert named("truth@7-7") == named("truth@7")


@pytest.mark.parametrize(
    "word",
    [
        "truth@x",
        "truth@",
        "truth@-1",
        "truth@1-",
        "truth@2-1",
        "truth@1-x",
        "truth@0.5",
        "truth@1-2-3",
    ],
)
def test_seeds_are_a_number_or_a_range(word):
    with pytest.raises(
        TorchleapError, match="Expected a seed or seeds such as truth@3 or truth@0-9, but found '"
    ):
        named(word)


@pytest.mark.parametrize("kind", ["ml-1m", "criteo", "avazu", "aliccp", "census"])
def test_read_sets_have_no_seed(kind):
    assert named(kind) == [Recipe(kind, kind)]
    with pytest.raises(
        TorchleapError,
        match=f"{kind} is not synthetic, so it has no seed: expected {kind}, but found '{kind}@1'",
    ):
        named(f"{kind}@1")


@pytest.mark.parametrize("word", ["truht", "truht@1", "file", "clicks.csv"])
def test_an_unknown_name_is_refused(word):
    with pytest.raises(
        TorchleapError,
        match=r"There is no data set '.*'\. .* A file of yours needs --label, or a TOML grid",
    ):
        named(word)


def test_every_kind_can_be_described():
    for kind in KINDS:
        assert described("mine", {"kind": kind, "a": 1}) == Recipe("mine", kind, {"a": 1})
    assert described("truth", {"rows": 3}) == Recipe("truth", "truth", {"rows": 3})
    assert described("mine", {"file": "a.csv"}).kind == "file"


def test_the_truth_is_known_of_made_sets(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHLEAP_CACHE", str(tmp_path))
    data = TINY.load()
    assert len(data.task.fields) == 14
    assert set(data.useful) == {
        name for name, role in data.role.items() if role in ("main", "pair")
    }
    assert set(data.useless) == {
        name for name, role in data.role.items() if role in ("noise", "constant")
    }
    assert data.source == {"copy_1": "main_dense_1", "copy_4": "main_dense_4"}
    log = industrial_recipe(rows=1_000, fields=40, dims=300, seed=3).load()
    assert len(log.task.train) + len(log.task.valid) + len(log.task.test) == 1_000
    assert (len(log.task.fields), log.task.fields.dims) == (
        40,
        302,
    )  # two of them are missing in some rows, which takes a column
    assert (
        set(log.role)
        == set(log.task.fields.names)
        >= set(log.useful) | set(log.useless) | set(log.source)
    )


def test_the_seed_of_a_made_set_decides_about_its_rows():
    settings = {**TINY.settings, "seed": 0}
    prints = [
        Recipe("tiny", "truth", {**settings, "seed": seed}).load().task.fingerprint
        for seed in (0, 0, 1)
    ]
    assert prints[0] == prints[1] == TINY.load().task.fingerprint != prints[2]


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        (Recipe("mine", "truth", {"row": 3}), "data 'mine' has no setting 'row'."),
        (
            Recipe("mine", "truth", {"width": (1,)}),
            "data 'mine' has no setting 'width'. Did you mean 'widths'",
        ),
        (
            Recipe("mine", "industrial", {"feilds": 3}),
            "data 'mine' has no setting 'feilds'. Did you mean 'fields'",
        ),
        (
            Recipe("mine", "census", {"path": "x", "chache": "y"}),
            "data 'mine' has no setting 'chache'. Did you mean 'cache'",
        ),
        (
            Recipe("mine", "file", {"file": "a.csv"}),
            "data 'mine': expected file = ... and label = ..., but found file.",
        ),
        (Recipe("mine", "file"), "expected file = ... and label = ..., but found nothing."),
        (
            Recipe("mine", "file", {"file": "a.csv", "label": "y", "gruop": "u"}),
            "no setting 'gruop'. Did you mean 'group'",
        ),
        (Recipe("mine", "file", {"file": "no.csv", "label": "y"}), "There is no file no.csv."),
    ],
)
def test_a_setting_that_a_set_does_not_know_is_refused_with_the_nearest(recipe, told):
    with pytest.raises(TorchleapError) as found:
        recipe.load()
    assert told in str(found.value)


def test_public_sets_need_a_place(monkeypatch, tmp_path):
    monkeypatch.delenv("TORCHLEAP_DATA", raising=False)
    with pytest.raises(
        TorchleapError,
        match="census is read from files: give their folder by --folder or by the environment",
    ):
        Recipe("census", "census").load()
    looked = []
    monkeypatch.setitem(KINDS, "census", lambda name, folder, tell, settings: looked.append(folder))
    Recipe("census", "census").load("here")
    monkeypatch.setenv("TORCHLEAP_DATA", "there")
    Recipe("census", "census").load()
    Recipe("census", "census").load("here")
    assert looked == ["here", "there", "here"]


def test_a_file_needs_a_label_and_is_read_with_it(tmp_path):
    with pytest.raises(TorchleapError, match="clicks.csv needs a label: give --label COLUMN"):
        file_recipe("clicks.csv", None)
    path = tmp_path / "clicks.csv"
    pl.DataFrame(
        {"item": [n % 7 for n in range(300)], "click": [n % 2 for n in range(300)]}
    ).write_csv(path)
    recipe = file_recipe(str(path), "click")
    assert (recipe.name, recipe.settings) == ("clicks", {"file": str(path), "label": "click"})
    told = []
    data = recipe.load(progress=lambda *what: told.append(what))
    assert (data.task.fields.names, data.useful, data.batch) == (("item",), (), 32)
    assert told
    assert recipe.settings["file"] == str(path)  # a recipe can be used again
