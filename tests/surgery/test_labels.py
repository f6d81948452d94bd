"""Names and columns that do not fit are found, by changing one input after the other."""

import copy
import warnings

import pytest
import torch
from torch import nn

import torchleap as tl
from torchleap.sites.calls import as_call
from torchleap.surgery.labels import Labels, check_labels

NAMES = ("item", "user", "city")


class ByName(nn.Module):
    """Concatenates tables in an order of its own."""

    def __init__(self, order=NAMES, widths=(4, 4, 4)):
        super().__init__()
        self.order = order
        self.tables = nn.ModuleDict(
            {name: nn.Embedding(20, width) for name, width in zip(order, widths, strict=True)}
        )
        self.deep = nn.Sequential(nn.Linear(sum(widths) + 1, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, batch):
        blocks = [self.tables[name](batch[name]) for name in self.order]
        return self.deep(torch.cat([*blocks, batch["price"][:, None]], dim=1))


def named(rows=40, **others):
    rng = torch.Generator().manual_seed(0)
    ids = {name: torch.randint(20, (rows,), generator=rng) for name in NAMES}
    return {**ids, "price": torch.randn(rows, generator=rng), **others}


FIELDS = {"item": 4, "user": 4, "city": 4, "price": 1}


def warned(function):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        function()
    return " ".join(str(one.message) for one in found)


def attach_warns(model, fields, **how):
    return warned(lambda: tl.attach(model, fields, **how))


def test_names_in_the_order_of_the_columns_are_accepted_silently():
    assert attach_warns(ByName(), FIELDS, at="deep", example=named()) == ""


def test_fields_of_equal_width_in_another_order_are_refused_with_the_true_order():
    model = ByName(("city", "item", "user"))
    expected = r"should be \{'city': 4, 'item': 4, 'user': 4, 'price': 1\}"
    with pytest.raises(tl.FieldError, match=expected):
        tl.attach(model, FIELDS, at="deep", example=named())
    assert not any("torchleap" in name for name, _ in model.named_modules())
    tl.attach(model, FIELDS, at="deep")  # the model is as it was


def test_widths_that_sum_up_by_chance_are_refused():
    model = ByName(widths=(2, 6, 4))
    with pytest.raises(tl.FieldError, match=r"should be \{'item': 2, 'user': 6, 'city': 4"):
        tl.attach(model, FIELDS, at="deep", example=named())


def test_without_an_example_the_plan_warns_once():
    model = ByName(("city", "item", "user"))
    plugin = tl.attach(model, FIELDS, at="deep", init=0.0)
    model(named())
    selection = tl.Selection(plugin.fields, (0.9, 0.1, 0.9, 0.9), (True, False, True, True))
    assert "should be {'city': 4" in warned(lambda: plugin.plan(selection))
    assert warned(lambda: plugin.plan(selection)) == ""


def test_two_fields_that_are_exchanged_are_found_beside_one_of_unknown_origin():
    class WithHistory(ByName):
        def forward(self, batch):
            blocks = [self.tables[name](batch[name]) for name in self.order]
            both = self.tables["item"](batch["item"] ^ (batch["user"] > 9).long())
            return self.deep(torch.cat([blocks[0], blocks[1], both, batch["price"][:, None]], 1))

    model = WithHistory(("user", "item", "city"))
    with pytest.raises(tl.FieldError, match="'item' has those of 'user', 'user' has those of"):
        tl.attach(model, FIELDS, at="deep", example=named())


def test_names_that_are_no_inputs_and_fields_of_several_inputs_are_nobodys():
    fields = {"a": 4, "b": 4, "c": 4, "price": 1}
    assert attach_warns(ByName(), fields, at="deep", example=named()) == ""

    class Mixed(ByName):
        def forward(self, batch):
            blocks = [self.tables[name](batch[name]) for name in self.order]
            blocks = [blocks[0] + blocks[1], blocks[1], blocks[2] * blocks[0]]
            return self.deep(torch.cat([*blocks, batch["price"][:, None]], 1))

    assert attach_warns(Mixed(), FIELDS, at="deep", example=named()) == ""


def test_many_inputs_take_few_runs():
    names = [f"x{i}" for i in range(200)]
    order = [*names[:50], names[51], names[50], *names[52:]]

    class Many(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(200, 1)

        def forward(self, batch):
            counter[0] += 1
            return self.head(torch.stack([batch[name] for name in order], 1))

    counter = [0]
    batch = {name: torch.randn(40) for name in names}
    with pytest.raises(tl.FieldError, match="should be"):
        tl.attach(Many(), dict.fromkeys(names, 1), at="head", example=batch)
    assert counter[0] < 30


class Columns(nn.Module):
    """Reads the columns of one tensor of ids, in an order of its own."""

    def __init__(self, order, widths=(4, 4, 4, 4)):
        super().__init__()
        self.order = order
        self.tables = nn.ModuleList(nn.Embedding(20, width) for width in widths)
        self.deep = nn.Sequential(nn.Linear(sum(widths), 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x):
        tables = zip(self.tables, self.order, strict=True)
        return self.deep(torch.cat([table(x[:, i].long()) for table, i in tables], 1))


def columns(rows=40):
    return torch.randint(20, (rows, 4), generator=torch.Generator().manual_seed(0))


def test_columns_of_one_tensor_in_their_own_order_are_accepted_silently():
    fields = dict.fromkeys("abcd", 4)
    assert attach_warns(Columns([0, 1, 2, 3]), fields, at="deep", example=columns()) == ""
    assert attach_warns(Columns([0, 0, 2, 2]), fields, at="deep", example=columns()) == ""


def test_columns_of_one_tensor_in_another_order_are_a_warning():
    fields = dict.fromkeys("abcd", 4)
    text = attach_warns(Columns([0, 2, 1, 3]), fields, at="deep", example=columns())
    assert "the columns of 'x' arrive in another order than their own" in text
    assert "'a' by column 0, 'b' by column 2, 'c' by column 1, 'd' by column 3" in text


def test_a_field_with_a_part_of_the_next_ones_columns_is_a_warning():
    fields = dict.fromkeys("abcd", 4)
    model = Columns([0, 1, 2, 3], widths=(3, 5, 4, 4))
    text = attach_warns(model, fields, at="deep", example=columns())
    assert "a field has a part of the columns of the next one" in text
    assert "'a' by 2 columns from 0 to 1, 'b' by column 1" in text


def test_ids_that_pass_the_gates_as_numbers_are_refused():
    x = torch.cat([columns(), torch.randn(40, 2)], 1)
    fields = dict.fromkeys("abcdef", 1)

    class WithNumbers(Columns):
        def __init__(self):
            super().__init__([0, 1, 2, 3])
            self.numbers = nn.Linear(2, 1)

        def forward(self, x):
            return super().forward(x) + self.numbers(x[:, 4:])

    expected = r"makes integers of 'a', 'b', 'c', 'd', as of ids.*at='tables.0', side='output'"
    with pytest.raises(tl.FieldError, match=expected):
        tl.attach(WithNumbers(), fields, example=x)


@pytest.mark.parametrize("part", [lambda x: x.int(), lambda x: x.to(torch.int64) + 0])
def test_ids_are_found_however_they_are_made_integers(part):
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(20, 2)

        def forward(self, x):
            return self.table(part(x)).sum((1, 2))

    with pytest.raises(tl.FieldError, match="makes integers of 'a', 'b', 'c', 'd'"):
        tl.attach(Whole(), dict.fromkeys("abcd", 1), example=columns().float())


def test_numbers_that_are_whole_or_rounded_on_purpose_are_accepted():
    class Buckets(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 1)

        def forward(self, x):
            level = x[:, 3].long().clamp(0, 3)
            return self.head(x) * level[:, None]

    counts = columns().float()
    counts[:, 3] += 0.5  # a number, of which the model uses the whole part
    assert attach_warns(Buckets(), dict.fromkeys("abcd", 1), example=counts) == ""


def test_columns_that_no_input_moves_are_a_warning():
    class WithToken(ByName):
        def __init__(self):
            super().__init__()
            self.token = nn.Parameter(torch.ones(1, 4))

        def forward(self, batch):
            blocks = [self.tables[name](batch[name]) for name in ("item", "user")]
            token = self.token.expand(len(blocks[0]), 4)
            return self.deep(torch.cat([token, *blocks, batch["price"][:, None]], 1))

    fields = {"a": 4, "b": 4, "c": 4, "price": 1}
    text = attach_warns(WithToken(), fields, at="deep", example=named())
    assert "no input of the example moves the columns of 'a'. Do other columns come before" in text
    constant = named(city=torch.zeros(40, dtype=torch.long))
    assert attach_warns(ByName(), FIELDS, at="deep", example=constant) == ""


def test_constant_numbers_are_moved_too():
    model = ByName(("city", "item", "user"))
    constant = named(price=torch.zeros(40))
    with pytest.raises(tl.FieldError, match="should be"):
        tl.attach(model, FIELDS, at="deep", example=constant)


def test_models_that_cannot_be_probed_are_left_alone():
    class Random(ByName):
        def forward(self, batch):
            out = super().forward(batch)
            return out + torch.randn_like(out)

    class Noisy(ByName):
        def forward(self, batch):
            noise[0] += 1.0
            return super().forward({**batch, "price": batch["price"] + noise[0]})

    class Strict(ByName):
        def forward(self, batch):
            if not torch.equal(batch["item"], first["item"][: len(batch["item"])]):
                raise ValueError("another batch")
            return super().forward(batch)

    class Partial(ByName):
        def __init__(self, order):
            super().__init__(order)
            self.spare = nn.Identity()

    noise = [0.0]
    first = named()
    order = ("city", "item", "user")
    with pytest.raises(tl.FieldError):  # noise behind the gates changes nothing
        tl.attach(Random(order), FIELDS, at="deep", example=first)
    for kind in (Noisy, Strict):
        assert attach_warns(kind(order), FIELDS, at="deep", example=first) == ""
    plugin = tl.attach(Partial(order), at={"spare": {"other": 2}, "deep": FIELDS})
    assert plugin.gates.fields is not None
    assert check_labels(plugin.model, plugin.gates, plugin.sites, as_call(first)) == Labels()


def test_the_model_the_random_state_and_the_batch_are_as_before():
    class Stateful(ByName):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(13)
            self.seen = []
            self.register_buffer("count", torch.zeros(()))

        def forward(self, batch):
            self.count += 1
            self.seen.append(len(batch["item"]))
            batch["item"] = batch["item"] * 1
            blocks = [self.tables[name](batch[name]) for name in self.order]
            x = torch.cat([*blocks, batch["price"][:, None]], 1)
            return self.deep(self.norm(x) + 0 * torch.rand(1))

    model = Stateful()
    batch = named()
    plugin = tl.attach(model, FIELDS, at="norm", seed=0)
    model(batch)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    kept = {name: value.clone() for name, value in batch.items()}
    state = torch.get_rng_state()
    labels = check_labels(model, plugin.gates, plugin.sites, as_call(batch))
    assert labels == Labels()
    assert torch.equal(torch.get_rng_state(), state)
    assert model.seen == [40]
    assert all(module.training for module in model.modules())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(torch.equal(batch[name], kept[name]) for name in kept)


def test_arguments_are_known_by_their_names():
    class Arguments(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(2, 1)

        def forward(self, price, age):
            return self.head(torch.stack([age, price], 1))

    with pytest.raises(tl.FieldError, match=r"should be \{'age': 1, 'price': 1\}"):
        tl.attach(
            Arguments(),
            {"price": 1, "age": 1},
            at="head",
            example=(torch.randn(9), torch.randn(9)),
        )


def test_each_place_of_a_field_is_compared_on_its_own():
    class WideAndDeep(ByName):
        def __init__(self):
            super().__init__(("city", "user", "item"))
            self.linear = nn.Identity()
            self.wide = nn.ModuleDict({name: nn.Embedding(20, 1) for name in NAMES})

        def forward(self, batch):
            wide = [self.wide[name](batch[name]) for name in NAMES]
            return super().forward(batch) + self.linear(torch.cat(wide, 1)).sum(1, keepdim=True)

    deep = {"city": 4, "user": 4, "item": 4, "price": 1}
    wide = dict.fromkeys(NAMES, 1)
    places = {"deep": deep, "linear": wide}
    assert attach_warns(WideAndDeep(), None, at=places, example=named()) == ""
    places["linear"] = {"user": 1, "item": 1, "city": 1}
    with pytest.raises(
        tl.FieldError, match=r"at='linear' \(input\).*should be \{'item': 1, 'user'"
    ):
        tl.attach(WideAndDeep(), at=places, example=named())


def test_batches_of_classes_of_their_own_have_the_names_of_their_attributes():
    class Batch:
        def __init__(self, columns):
            self.inner = columns
            self.rows = len(columns["item"])

    class Opened(ByName):
        def forward(self, batch):
            return super().forward(batch.inner)

    with pytest.raises(tl.FieldError, match=r"should be \{'city': 4"):
        tl.attach(Opened(("city", "item", "user")), FIELDS, at="deep", example=Batch(named()))


class Tables(nn.Module):
    """Concatenates tables in an order that each call names."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleDict({name: nn.Embedding(20, 4) for name in NAMES})

    def forward(self, batch, order):
        return torch.cat([self.tables[name](batch[name]) for name in order], 1)


class Twice(nn.Module):
    """Calls one module twice, with columns of equal width."""

    def __init__(self, again, mix=None):
        super().__init__()
        self.embedding = Tables()
        self.again = again
        self.mix = mix or (lambda x: x)
        self.layer = nn.Linear(24, 1)

    def forward(self, batch):
        batch = self.mix(batch)
        both = [self.embedding(batch, NAMES), self.embedding(batch, self.again)]
        return self.layer(torch.cat(both, 1))


THREE = dict.fromkeys(NAMES, 4)
EMBEDDED = {"at": "embedding", "side": "output"}


def three(rows=40):
    return {name: ids for name, ids in named(rows).items() if name in NAMES}


def _mixed(batch):
    total = sum(batch.values()) % 20
    return dict.fromkeys(batch, total)


def test_a_second_call_with_columns_in_another_order_is_refused_with_the_true_order():
    expected = r"call 1\).*should be \{'city': 4, 'user': 4, 'item': 4\}"
    with pytest.raises(tl.FieldError, match=expected):
        tl.attach(Twice(NAMES[::-1]), THREE, **EMBEDDED, example=three())
    assert attach_warns(Twice(NAMES), THREE, **EMBEDDED, example=three()) == ""


def test_a_second_call_whose_columns_cannot_be_told_is_warned_of():
    found = attach_warns(Twice(NAMES, _mixed), THREE, **EMBEDDED, example=three())
    assert "call 1): the module is called several times" in found
    assert "does not show whether" in found
    fields = dict.fromkeys(("a", "b", "c"), 4)  # not the names of inputs
    found = attach_warns(Twice(NAMES[::-1]), fields, **EMBEDDED, example=three())
    assert "other inputs move the columns than in its first call" in found
    assert attach_warns(Twice(NAMES), fields, **EMBEDDED, example=three()) == ""


def test_a_second_call_of_a_model_with_changing_results_is_warned_of():
    steps = iter(range(1000))
    model = Twice(NAMES)
    model.embedding.register_forward_hook(lambda module, args, output: output + next(steps))
    assert "does not show whether" in attach_warns(model, THREE, **EMBEDDED, example=three())


class Rounding(nn.Module):
    """Makes ids of the numbers of its first two columns."""

    def __init__(self, to_ids):
        super().__init__()
        self.to_ids = to_ids
        self.gated = nn.Identity()
        self.table = nn.Embedding(40, 4)
        self.layer = nn.Linear(9, 1)

    def forward(self, x):
        x = self.gated(x)
        ids = torch.as_tensor(self.to_ids(x[:, :2])).long().clamp(0, 39)
        return self.layer(torch.cat([self.table(ids).flatten(1), x[:, 2:]], 1))


KEYS = {float(number): number for number in range(40)}
TO_IDS = {
    "round": lambda x: x.round().long(),
    "floor": lambda x: x.floor().int(),
    "half added": lambda x: (x + 0.5).long(),
    "clamp": lambda x: x.clamp(0, 99).long(),
    "product": lambda x: (x * 1).long(),
    "stack": lambda x: torch.stack([x[:, 0], x[:, 1]], 1).long(),
    "ceil": lambda x: x.ceil().long(),
    "tolist": lambda x: [[int(number) for number in row] for row in x.tolist()],
    "numpy": lambda x: x.detach().numpy().astype("int64"),
    "keys": lambda x: [[KEYS[number] for number in row] for row in x.tolist()],
}
NUMBERS = {"at": "gated", "side": "output"}
COLUMNS_OF_X = {"user": 1, "item": 1, "count": 1}


def numbers(rows=40, distinct=20):
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(distinct, (rows, 2), generator=rng)
    return torch.cat([ids, torch.randint(50, (rows, 1), generator=rng)], 1).float()


@pytest.mark.parametrize("name", TO_IDS)
def test_ids_that_pass_as_numbers_are_refused_whatever_makes_integers_of_them(name):
    model = Rounding(TO_IDS[name])
    with pytest.raises(tl.FieldError, match="makes integers of 'user', 'item', as of ids") as found:
        tl.attach(model, COLUMNS_OF_X, **NUMBERS, example=numbers())
    assert "'count'" not in str(found.value)
    assert "at='table', side='output'" in str(found.value)


@pytest.mark.parametrize("how", [{"rows": 1}, {"distinct": 1}, {"distinct": 2}])
def test_ids_of_which_the_example_has_too_few_values_are_warned_of(how):
    found = attach_warns(Rounding(TO_IDS["round"]), COLUMNS_OF_X, **NUMBERS, example=numbers(**how))
    assert "too few values to tell whether they are ids" in found


@pytest.mark.parametrize(
    "layers", [[nn.Linear(3, 1)], [nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)], [nn.Identity()]]
)
def test_whole_numbers_that_are_read_as_numbers_are_accepted_silently(layers):
    for rows in (40, 1):
        model = nn.Sequential(*copy.deepcopy(layers), nn.Sigmoid())
        assert attach_warns(model, COLUMNS_OF_X, at="0", example=numbers(rows)) == ""


def test_columns_with_a_gradient_are_no_ids_and_take_one_run():
    model = nn.Sequential(nn.Linear(300, 1))
    runs = []
    model.register_forward_hook(lambda *_: runs.append(1))
    counts = torch.randint(50, (40, 300)).float()
    assert attach_warns(model, {f"f{n}": 1 for n in range(300)}, at="0", example=counts) == ""
    assert len(runs) < 30
