import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchleap import TorchleapError
from torchleap.bench import Store

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "trials.jsonl"


def filled(path, *keys):
    store = Store(path)
    with store.writing():
        for key in keys:
            store.add(key, {"result": {"auc": 0.1 + len(key)}})
    return store


@given(st.dictionaries(st.text(max_size=4), PLAIN, max_size=4))
def test_what_is_added_is_read_again_bit_by_bit(tmp_path_factory, results):
    path = tmp_path_factory.mktemp("store") / "trials.jsonl"
    store = Store(path)
    with store.writing():
        for key, result in results.items():
            store.add(key, {"result": result})
    again = Store(path)
    assert [record["key"] for record in again] == list(results)
    assert (
        {key: again[key]["result"] for key in results}
        == results
        == {key: store[key]["result"] for key in results}
    )
    assert path.read_bytes().count(b"\n") == len(again) == len(results)


def test_a_new_store_is_empty_and_makes_nothing_until_it_is_written_to(path):
    store = Store(path)
    assert (len(store), "a" in store, list(store)) == (0, False, [])
    assert not path.parent.exists()
    filled(path, "a")
    assert "a" not in store
    with store.writing():  # another run has written since
        assert "a" in store


def test_lines_are_only_ever_appended(path):
    filled(path, "a", "b")
    before = path.read_bytes()
    filled(path, "c")
    assert path.read_bytes().startswith(before)
    assert [json.loads(line)["key"] for line in path.read_text().splitlines()] == ["a", "b", "c"]


@pytest.mark.parametrize("cut", [1, 10, 30])
def test_a_line_that_was_cut_off_is_dropped_and_written_over(path, cut):
    filled(path, "a", "b")
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    store = Store(path)
    assert ("a" in store, "b" in store) == (True, False)
    assert path.read_bytes() == whole[:-cut]  # reading changes nothing
    filled(path, "b")
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "damage", ["{broken", '{"result": 1}', "[1, 2]", "7", '{"key": ["a"]}', "", "\xff"]
)
def test_a_damaged_line_in_the_middle_is_one_error_with_its_number(path, damage):
    filled(path, "a", "b", "c")
    lines = path.read_bytes().splitlines()
    lines[1] = damage.encode("latin-1")
    path.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(
        TorchleapError,
        match=r"trials.jsonl, line 2 is damaged: .* Remove that line; its trial is then run again",
    ):
        Store(path)


def test_a_second_writer_is_refused_and_a_reader_is_not(path):
    first, second = filled(path, "a"), Store(path)
    with first.writing():
        with (
            pytest.raises(TorchleapError, match="Another run is writing to .*deep. Wait for it"),
            second.writing(),
        ):
            pass
        first.add("b", {"result": 1})
        assert "b" in Store(path)
    with second.writing():
        second.add("c", {"result": 1})
    assert len(Store(path)) == 3


def test_a_writer_that_was_killed_holds_nothing(path):
    code = (
        "import os, sys; from torchleap.bench.store import Store\n"
        "store = Store(sys.argv[1])\n"
        "with store.writing():\n"
        "    store.add('a', {'result': 1})\n"
        "    open(sys.argv[1], 'a').write('{\"key\": \"b')\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == -9
    assert path.read_text().endswith('{"key": "b')
    assert [record["key"] for record in filled(path, "c")] == ["a", "c"]
    assert [json.loads(line)["key"] for line in path.read_text().splitlines()] == ["a", "c"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_a_number_is_refused_before_anything_is_written(path, value):
    store = filled(path, "a")
    before = path.read_bytes()
    with store.writing(), pytest.raises(ValueError, match="not JSON compliant"):
        store.add("b", {"result": {"auc": value}})
    assert path.read_bytes() == before
    assert "b" not in store
