"""The example and the documentation run as printed."""

import re

import pytest

from tests.torchrec.launch import ROOT, torchrun

pytest.importorskip("torchrec", reason="make test-torchrec installs TorchRec")


def test_a_sharded_dlrm_loses_the_tables_of_its_useless_features():
    output = torchrun("examples/torchrec_dlrm.py")
    assert "tables after:  user_table item_table shop_table query_table\n" in output
    assert "moon_table  EmbeddingBag(100, 8) => removed" in output
    assert float(re.search(r"differ by at most (\S+)", output)[1]) < 1e-5
    full, pruned = map(float, re.search(r"all features (\S+), pruned (\S+)", output).groups())
    assert pruned < full + 0.005


def test_the_code_in_the_documentation_runs():
    namespace = {}
    for code in re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/torchrec.md").read_text(), flags=re.DOTALL
    ):
        exec(compile(code, "docs/torchrec.md", "exec"), namespace)
    left = namespace["small"].sparse_arch.embedding_bag_collection.embedding_bag_configs()
    assert [config.feature_names for config in left] == [
        [name] for name in namespace["selection"].kept
    ]
    assert len(left) == 2
