import sys
from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchleap import TorchleapError, auc
from torchleap.data.synthetic.industrial import CHUNK, IndustrialLog
from torchleap.data.synthetic.industrial_fields import CAST

pl = pytest.importorskip("polars")

LOG = IndustrialLog(fields=64, dims=1_000, seed=3)
ROWS = 100_000
FRAME = LOG.frame(ROWS)
SIGNALS = LOG.signals(FRAME)
ODDS = LOG.log_odds(FRAME)
LABEL = FRAME["label"].to_numpy()


def values(name, frame=FRAME):
    return frame[name].to_numpy()


def fields_of(role, log=LOG):
    return [name for name, found in log.role.items() if found == role]


def default(name):
    """In which rows a field has its default."""
    found = values(name)
    return (found == 0).all(1) if found.ndim == 2 else found == 0


def z_score(x, y):
    """The correlation, in standard deviations of what chance gives."""
    return np.corrcoef(x, y)[0, 1] * np.sqrt(len(x))


def test_the_same_settings_give_the_same_rows_and_another_seed_does_not():
    again = IndustrialLog(fields=64, dims=1_000, seed=3).frame(500)
    assert again.equals(FRAME[:500])
    other = IndustrialLog(fields=64, dims=1_000, seed=4).frame(500)
    assert other.columns == again.columns
    for name in ("label", "user", "main_number_1_000", *LOG.pairs[0], *LOG.source):
        assert not other[name].equals(again[name]), name


def test_another_seed_gives_fields_other_effects():
    other = IndustrialLog(fields=64, dims=1_000, seed=4).signals(FRAME[:2_000])
    for name in LOG.useful:
        if LOG.kind[name] != "number" and LOG.role[name] in ("main", "pair", "drift"):
            assert abs(np.corrcoef(other[name], SIGNALS[name][:2_000])[0, 1]) < 0.97, name


@given(st.integers(0, 13_000), st.integers(0, 9_000))
def test_any_cut_gives_the_same_rows(start, rows):
    assert LOG.frame(rows, start).equals(FRAME[start : start + rows])


@pytest.mark.parametrize("chunk", [100, CHUNK, 8_192])
def test_a_stream_is_the_log_cut_into_pieces(chunk):
    for number, frame in enumerate(islice(LOG.stream(chunk, start=700), 5)):
        assert frame.equals(FRAME[700 + number * chunk :][:chunk])


def test_the_log_does_not_end():
    far = LOG.frame(30, start=10**12)
    assert far.height == 30
    assert far["time"][0] > FRAME["time"][-1]


@pytest.mark.parametrize(
    ("fields", "dims"), [(512, 12_000), (64, 1_000), (37, 400), (200, 3_000), (1_000, 40_000)]
)
def test_widths_sum_to_dims_and_every_role_has_every_kind(fields, dims):
    log = IndustrialLog(fields=fields, dims=dims)
    assert len(log.role) == fields
    assert sum(log.widths.values()) == dims
    assert list(log.role) == list(log.kind) == list(log.widths) == log.frame(0).columns[4:]
    assert {(log.role[name], log.kind[name]) for name in log.role} == {
        (r, k) for r in CAST for k in ("number", "ids", "vector")
    }
    wide = Counter()
    for name, width in log.widths.items():
        wide[log.kind[name]] += width
    assert 0.45 < wide["ids"] / (wide["ids"] + wide["vector"]) < 0.55


@given(st.integers(37, 300), st.floats(0, 1))
def test_every_number_of_dims_within_the_limits_is_met_exactly(fields, share):
    with pytest.raises(TorchleapError) as caught:
        IndustrialLog(fields=fields, dims=0)
    low, high = (
        int(word.replace(",", ""))
        for word in str(caught.value).split("dims must be ")[1].split()[:3:2]
    )
    dims = round(low + share * (high - low))
    assert sum(IndustrialLog(fields=fields, dims=dims).widths.values()) == dims


def test_the_default_log_has_many_widths_and_cardinalities():
    log = IndustrialLog()
    by_kind = {
        kind: {log.widths[name] for name in log.role if log.kind[name] == kind}
        for kind in ("number", "ids", "vector")
    }
    assert by_kind["number"] == {1}
    assert by_kind["vector"] == {16, 64, 128, 256}
    assert {4, 8, 16, 32, 64, 128, 256} <= by_kind["ids"] <= set(range(4, 257))
    assert {10, 100, 1_000, 10_000, 100_000} <= set(log.cardinality.values())
    for role in ("main", "sparse main", "sparse noise", "noise", "redundant"):
        assert len({(log.kind[name], log.widths[name]) for name in fields_of(role, log)}) >= 6, role


def test_useful_useless_and_redundant_fields_are_all_fields():
    assert sorted((*LOG.useful, *LOG.useless, *LOG.source)) == sorted(LOG.role)
    assert {LOG.role[name] for name in LOG.useless} == {"noise", "sparse noise", "constant", "dead"}
    assert sorted(name for pair in LOG.pairs for name in pair) == sorted(fields_of("pair"))
    assert set(LOG.effect) == set(LOG.useful)


def test_columns_have_the_type_of_their_kind():
    for name, kind in LOG.kind.items():
        expected = {
            "number": pl.Float32,
            "ids": pl.Int32,
            "vector": pl.Array(pl.Float32, LOG.widths[name]),
        }[kind]
        assert FRAME.schema[name] == expected, name
    assert FRAME.schema["label"] == pl.Int8
    assert FRAME.schema["time"] == pl.Int64


def test_ids_stay_below_their_cardinality_and_follow_zipf():
    for name, cardinality in LOG.cardinality.items():
        if LOG.role[name] in ("noise", "main"):
            found = values(name)
            assert 1 <= found.min() <= found.max() < cardinality
            assert (found == 1).mean() == pytest.approx(np.log(2) / np.log(cardinality), abs=0.01)


def test_sparse_fields_are_99_percent_default_and_dense_ones_are_not():
    for role in ("sparse main", "sparse noise"):
        for name in fields_of(role):
            assert default(name).mean() == pytest.approx(0.99, abs=0.002), name
    for role in ("main", "noise", "pair", "drift", "redundant", "constant"):
        for name in fields_of(role):
            assert default(name).mean() < 0.001, name


def test_copies_of_numbers_and_vectors_are_rotations_with_a_little_noise():
    for name, source in LOG.source.items():
        if LOG.kind[name] != "ids":
            x, copied = (values(n).reshape(ROWS, -1) for n in (source, name))
            rotation = np.linalg.lstsq(x, copied, rcond=None)[0]
            np.testing.assert_allclose(rotation @ rotation.T, np.eye(LOG.widths[name]), atol=0.01)
            assert (copied - x @ rotation).std() == pytest.approx(0.1, abs=0.005)


def test_copies_of_ids_are_relabelled_with_a_few_wrong_ones():
    log = IndustrialLog(seed=1)
    copies = [name for name in log.source if log.kind[name] == "ids"]
    assert {log.cardinality[name] for name in copies} >= {10, 100, 1_000}
    for name in copies:
        ids = np.arange(1, log.cardinality[log.source[name]])
        labels = log.columns[name].relabel(ids)
        assert sorted(labels) == list(ids)
        assert (labels != ids).mean() > 0.5
    for name in (name for name in LOG.source if LOG.kind[name] == "ids"):
        right = values(name) == LOG.columns[name].relabel(values(LOG.source[name]))
        assert 0.9 < right.mean() < 0.95


def test_constants_are_constant():
    for name in fields_of("constant"):
        assert FRAME[name].n_unique() == 1
        assert FRAME[name].null_count() == 0


def test_dead_fields_are_null_from_the_start_or_after_a_thousand_rows():
    assert {FRAME[name].null_count() for name in fields_of("dead")} == {ROWS, ROWS - 1_000}
    for name in fields_of("dead"):
        assert FRAME[name][1_000:].null_count() == ROWS - 1_000
    alive = set(LOG.role) - set(fields_of("dead"))
    assert not any(FRAME[name].null_count() for name in alive)


@pytest.mark.parametrize("settings", [{"fields": 64, "dims": 1_000}, {}])
def test_the_best_possible_auc_is_about_80_percent_and_clicks_are_rare(settings):
    log = IndustrialLog(**settings)
    frame = log.frame(12_000)
    assert 0.75 < auc(frame["label"].to_numpy(), log.log_odds(frame)) < 0.88
    assert 0.10 < frame["label"].mean() < 0.20


def test_labels_are_drawn_from_the_true_log_odds():
    chance = 1 / (1 + np.exp(-ODDS))
    for low, high in ((0, 0.05), (0.05, 0.2), (0.2, 0.5), (0.5, 1)):
        rows = (low <= chance) & (chance < high)
        sigma = np.sqrt((chance * (1 - chance))[rows].mean() / rows.sum())
        assert abs(LABEL[rows].mean() - chance[rows].mean()) < 4 * sigma


def test_signals_have_mean_0_and_variance_1_where_a_field_is_active():
    for name, signal in SIGNALS.items():
        active = signal[~default(name)]
        assert abs(active.mean()) < 5 / np.sqrt(len(active)), name
        assert active.std() == pytest.approx(1, abs=0.03 if len(active) == ROWS else 0.2), name


def test_main_fields_move_the_label_and_noise_does_not():
    for name in (*fields_of("main"), *fields_of("sparse main")):
        assert z_score(SIGNALS[name], LABEL) > 8, name
    for name in (*fields_of("noise"), *fields_of("sparse noise")):
        columns = values(name).reshape(ROWS, -1).T
        limit = 4 if len(columns) < 16 else 4.5  # the largest of many
        for column in columns:
            assert abs(z_score(column, LABEL)) < limit, name


def test_a_pair_matters_through_its_product_alone():
    for a, b in LOG.pairs:
        assert z_score(SIGNALS[a] * SIGNALS[b], LABEL) > 20
        assert abs(z_score(SIGNALS[a], LABEL)) < 4
        assert abs(z_score(SIGNALS[b], LABEL)) < 4


def test_drifting_effects_fade_and_grow():
    log = IndustrialLog(
        fields=64, dims=1_000, queries_per_day=1_600, drift_days=12, seed=5
    )  # 20,000 rows a day
    early, late = log.frame(40_000), log.frame(40_000, start=250_000)
    seen = {"early": (early, log.signals(early)), "late": (late, log.signals(late))}
    for name, course in log.drift.items():
        z = {
            when: z_score(signals[name], frame["label"].to_numpy())
            for when, (frame, signals) in seen.items()
        }
        strong, weak = ("early", "late") if course == "fades" else ("late", "early")
        assert z[strong] > 6, name
        assert abs(z[weak]) < 4, name
    assert set(log.drift.values()) == {"fades", "grows"}


def test_with_a_switch_drifting_effects_change_at_once():
    log = IndustrialLog(
        fields=64, dims=1_000, queries_per_day=1_600, switch_days=2, seed=5
    )  # 20,000 rows a day
    before, after = log.frame(40_000), log.frame(40_000, start=40_000)
    for name, course in log.drift.items():
        strong, weak = (before, after) if course == "fades" else (after, before)
        z = [
            z_score(log.signals(frame)[name], frame["label"].to_numpy()) for frame in (strong, weak)
        ]
        assert z[0] > 6, name
        assert abs(z[1]) < 4, name
    slow = IndustrialLog(fields=64, dims=1_000, queries_per_day=1_600, seed=5).frame(2_000)
    assert slow.drop("label").equals(before[:2_000].drop("label"))


def test_queries_are_5_to_20_neighbouring_rows_of_one_user_and_time():
    query = FRAME["query"].to_numpy()
    starts = np.flatnonzero(np.diff(query, prepend=-1))
    assert np.array_equal(query[starts], np.arange(len(starts)))
    sizes = np.diff(starts)
    assert set(sizes) == set(range(5, 21))
    by_query = FRAME.group_by("query").agg(pl.col("user", "time").n_unique())
    assert by_query["user"].max() == by_query["time"].max() == 1


def test_time_rises_by_a_day_in_queries_per_day_and_users_come_back():
    time = FRAME["time"].to_numpy()
    assert (np.diff(time) >= 0).all()
    days = (time[-1] - time[0]) / 86_400
    assert days == pytest.approx(FRAME["query"][-1] / LOG.queries_per_day, rel=0.001)
    assert 0 <= FRAME["user"].min() <= FRAME["user"].max() < LOG.users
    assert FRAME["user"].n_unique() < FRAME["query"].n_unique()


def test_a_file_holds_the_log_and_tells_its_progress(tmp_path):
    path, told = tmp_path / "new" / "folder" / "log.parquet", []
    LOG.write(path, 20_500, told.append)
    found = pl.read_parquet(path)
    assert found.equals(FRAME[:20_500])
    assert found.schema == FRAME.schema
    assert told == [8_000, 16_000, 20_500]
    assert [file.name for file in path.parent.iterdir()] == ["log.parquet"]
    parquet = pytest.importorskip("pyarrow.parquet").ParquetFile(path)
    assert [parquet.metadata.row_group(i).num_rows for i in range(3)] == [8_000, 8_000, 4_500]


def test_an_empty_file_has_the_columns(tmp_path):
    LOG.write(tmp_path / "log.parquet", 0)
    assert pl.read_parquet(tmp_path / "log.parquet").schema == FRAME.schema


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failed_write_leaves_everything_as_it_was(tmp_path, error):
    def fail(done):
        assert any(tmp_path.iterdir())
        raise error

    with pytest.raises(error):
        LOG.write(tmp_path / "log.parquet", 9_000, fail)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "log.parquet").write_text("the old one")
    with pytest.raises(error):
        LOG.write(tmp_path / "log.parquet", 9_000, fail)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["the old one"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            {"fields": 36},
            "fields must be a whole number from 37 to 100,000, but is 36",
        ),
        ({"fields": 64.0}, "fields must be .* but is 64.0"),
        ({"fields": 64, "dims": 100}, "dims must be 343 to 4,763 for 64 fields .*, but is 100"),
        (
            {"fields": 64, "dims": 50_000},
            "dims must be 343 to 4,763 for 64 fields .*, but is 50000",
        ),
        ({"queries_per_day": 0}, "queries_per_day must be a whole number of at least 1, but is 0"),
        ({"drift_days": 0.0}, "drift_days must be a number above 0, but is 0.0"),
        ({"switch_days": -1.0}, "switch_days must be a number of at least 0 or None, but is -1.0"),
        ({"users": 0}, "users must be a whole number of at least 1, but is 0"),
        ({"active": 0.0}, "active must be a number above 0 and at most 1, but is 0.0"),
        (
            {"seed": -1, "users": 0},
            "users .*; seed must be a whole number from 0 to 4,294,967,295, but is -1",
        ),
    ],
)
def test_impossible_logs_are_refused(bad, message):
    with pytest.raises(TorchleapError, match=message):
        IndustrialLog(**bad)


def test_impossible_cuts_and_files_are_refused(tmp_path):
    with pytest.raises(
        TorchleapError, match="rows must be a whole number of at least 0, but is -1"
    ):
        LOG.frame(-1)
    with pytest.raises(
        TorchleapError, match="start must be a whole number of at least 0, but is -1"
    ):
        LOG.stream(start=-1)
    with pytest.raises(
        TorchleapError, match="chunk must be a whole number of at least 1, but is 0"
    ):
        LOG.stream(0)
    with pytest.raises(TorchleapError, match="rows must be"):
        LOG.write(tmp_path / "log.parquet", 1.5)
    with pytest.raises(TorchleapError, match=r"ends in \.parquet, but found .*log\.csv"):
        LOG.write(tmp_path / "log.csv", 10)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["polars", "pyarrow.parquet"])
def test_a_missing_package_is_named_with_its_cure(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(TorchleapError, match=r"pip install 'torchleap\[data\]'"):
        LOG.write(tmp_path / "log.parquet", 10)
