"""The collectives among real ranks, and that a single process needs none of them."""

from pathlib import Path

import torch

from torchleap.distributed import ranks

from .ranks_of import finish, keep, run, start


def exchange(folder: Path) -> None:
    own = ranks.rank()
    keep(
        folder,
        {
            "shard": ranks.shard(),
            "total": ranks.total(torch.tensor([1.0, own])),
            "average": ranks.average(torch.tensor([1.0, own])),
            "averages": ranks.averages([0.5, own, own == 1]),
            "on any": [ranks.on_any(own == 1), ranks.on_any(False)],
            "broadcast": ranks.broadcast(torch.tensor([own])),
            "from first": ranks.from_first({"rank": own}),
            "all": ranks.all_gather(torch.full((1 + own, 2), own)),
            "rows": ranks.all_rows(torch.full((1 + own, 2), own)),
        },
    )


def test_every_rank_gets_the_same_from_a_collective(tmp_path: Path) -> None:
    first, second = run(exchange, tmp_path)
    assert (first.pop("shard"), second.pop("shard")) == ((0, 2), (1, 2))
    for found in (first, second):
        assert found["total"].tolist() == [2.0, 1.0]
        assert found["average"].tolist() == [1.0, 0.5]
        assert found["averages"] == [0.5, 0.5, 0.5]
        assert found["on any"] == [True, False]
        assert found["broadcast"].tolist() == [0]
        assert found["from first"] == {"rank": 0}
        assert [len(one) for one in found["all"]] == [1, 2]
        assert found["rows"].tolist() == [[0, 0], [1, 1], [1, 1]]


def test_a_single_process_is_the_first_of_one_rank_and_sends_nothing() -> None:
    assert not ranks.is_distributed()
    assert ranks.is_first()
    assert ranks.shard() == (0, 1)
    tensor = torch.tensor([1.0, 2.0])
    for same in (ranks.total, ranks.average, ranks.broadcast, ranks.full, ranks.own_part):
        assert same(tensor) is tensor
    assert torch.equal(ranks.all_rows(tensor), tensor)
    assert ranks.averages([0.5, True]) == [0.5, True]
    assert ranks.on_any(True)
    assert not ranks.on_any(False)
    assert ranks.from_first("value") == "value"
    ranks.barrier()
    done = []
    ranks.on_first(lambda: done.append(1))
    assert done == [1]


def write_once(folder: Path) -> None:
    with (folder / "log").open("a") as log:
        ranks.on_first(lambda: log.write(f"rank {ranks.rank()}\n") and log.flush())
    keep(folder, (folder / "log").read_text())


def test_work_on_the_first_rank_is_done_once_and_before_the_others_continue(tmp_path: Path) -> None:
    assert run(write_once, tmp_path) == ["rank 0\n", "rank 0\n"]


def fail_on_first(folder: Path) -> None:
    def write() -> None:
        raise OSError("the disk is full")

    ranks.on_first(write)


def test_work_that_fails_on_the_first_rank_ends_the_others(tmp_path: Path) -> None:
    (_, first), (_, second) = finish(start(fail_on_first, tmp_path))
    assert "OSError: the disk is full" in first
    assert "RankError: Rank 0 could not continue. OSError: the disk is full" in second
