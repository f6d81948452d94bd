"""Records: one schema for decisions and benchmarks, made once."""

import json
import math
from dataclasses import FrozenInstanceError, asdict, fields

import pytest

from torchleap.objectives import METRICS
from torchleap.pipeline.record import (
    FORMAT,
    RECORDS,
    BenchRecord,
    KnownMetric,
    LinesRecord,
    PathRecord,
    TableRecord,
    is_finite,
)
from torchleap.selection.path import Path, PathPoint, Substitute, Worth


def bench():
    curve = {"title": "AUC", "x": "share", "y": "AUC", "series": [{"name": "leap", "points": []}]}
    return BenchRecord(
        title="Methods",
        settings={"shares": (0.5,), "limit": math.inf},
        tables=[TableRecord("AUC", ("method", "AUC"), (("leap", math.nan), ("lasso", None)))],
        curves=[LinesRecord.of(curve)],
    )


def test_a_record_is_plain_json_with_its_format_and_kind():
    content = bench().to_json()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert (content["format"], content["kind"]) == (FORMAT, "bench")
    assert content["settings"] == {"shares": [0.5], "limit": None}
    assert content["tables"][0]["rows"] == [["leap", None], ["lasso", None]]
    assert content["curves"][0]["series"] == [{"name": "leap", "points": []}]


def test_a_record_knows_its_time_versions_and_machine():
    content = bench().to_json()
    assert content["created"][10] == "T"
    assert set(content["versions"]) == {"torchleap", "torch", "python"}
    assert "core" in content["machine"]
    assert content["command"] is None


def test_a_record_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        bench().command = "torchleap bench"


def test_every_kind_of_record_has_the_common_part():
    common = {"title", "created", "command", "versions", "machine", "settings"}
    for name, kind in RECORDS.items():
        assert kind.kind == name
        assert common < {field.name for field in fields(kind)}


def test_an_unknown_key_of_a_curve_is_an_error():
    with pytest.raises(TypeError, match="titel"):
        LinesRecord.of({"titel": "AUC", "x": "x", "y": "y", "series": []})


def test_a_metric_is_described_by_its_title_and_direction():
    assert KnownMetric.of(METRICS["auc"]) == KnownMetric("AUC", higher_is_better=True)
    assert KnownMetric.of(METRICS["log_loss"]).sign == -1


def test_the_record_of_a_path_has_its_keys_without_worth_and_gates():
    point = PathPoint(
        kept=("a",),
        closed=("b",),
        dims=3,
        cost=1.5,
        metric=0.8,
        low=0.79,
        high=0.81,
        behind=0.01,
        error=0.02,
        loss=0.4,
        price=1e-3,
        step=900,
    )
    path = Path(
        metric="auc",
        worth={"a": Worth(0.1, 0.0, 0.2)},
        points=(point,),
        substitutes=(Substitute("b", "a", 0.002, 0.03),),
        gates={"a": 0.9},
    )
    expected = path.to_json()
    del expected["worth"], expected["gates"], expected["decoys"]
    expected["adapted"] = True
    record = asdict(PathRecord.of(path))
    assert json.loads(json.dumps(record)) == json.loads(json.dumps(expected))


@pytest.mark.parametrize(
    ("value", "finite"),
    [(0, True), (-1e299, True), (1e301, False), (math.nan, False), ("1", False), (True, False)],
)
def test_only_numbers_that_a_chart_can_draw_are_finite(value, finite):
    assert is_finite(value) is finite
