"""Ali-CCP, from its original files."""

import torchleap as tl


def values(task, name, part="train"):
    ids = getattr(task, part).all().ids[:, task.slots(ids=True)[name]]
    words = ["missing", "unseen", *task.vocabulary(name)]
    return [[words[number] for number in row] for row in ids.tolist()]


def test_the_original_aliccp_files_are_joined(tmp_path):
    def features(**pairs):
        return "\x01".join(
            f"{field.lstrip('f')}\x02{value}\x031.0" for field, value in pairs.items()
        )

    for part, rows in (("train", 20), ("test", 10)):
        common = [f"u{i},2,{features(f101=70 + i, f109_14=900 + i)}" for i in range(3)]
        (tmp_path / f"common_features_{part}.csv").write_text("\n".join(common))
        skeleton = [
            f"{i},{i % 2},0,u{i % 3},2,{features(f205=500 + i % 4, f301=1)}" for i in range(rows)
        ]
        (tmp_path / f"sample_skeleton_{part}.csv").write_text("\n".join(skeleton))
    task = tl.data.aliccp(tmp_path, cache=tmp_path / "cache")
    assert (len(task.train), len(task.valid), len(task.test)) == (20, 5, 5)
    assert len(task.columns) == 23
    assert [value for (value,) in values(task, "101")[:4]] == ["70", "71", "72", "70"]
    assert [value for (value,) in values(task, "109_14")[:2]] == ["900", "901"]
    assert [value for (value,) in values(task, "205")[:5]] == ["500", "501", "502", "503", "500"]
    assert values(task, "121")[0] == ["missing"]
    assert task.train.label.tolist()[:3] == [0.0, 1.0, 0.0]
