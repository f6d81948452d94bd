import ctypes
import gc
import threading
import weakref

import pytest
import torch

from torchleap.mix.memory import LARGE, Pool


class Heap:
    """Memory that counts."""

    def __init__(self):
        self.blocks = {}
        self.asked = self.freed = 0

    def allocate(self, size):
        self.asked += 1
        block = ctypes.create_string_buffer(size)
        self.blocks[ctypes.addressof(block)] = block
        return ctypes.addressof(block)

    def release(self, address):
        self.freed += 1
        del self.blocks[address]


@pytest.fixture
def heap():
    return Heap()


def large(rows=1, dtype=torch.float32):
    return torch.empty(0, dtype=dtype), (rows, LARGE // 4)


def test_a_block_is_used_again_when_its_last_tensor_is_gone(heap):
    pool = Pool(heap.allocate, heap.release)
    first = pool.empty(*large())
    view = first[:, 1:]
    place = first.data_ptr()
    del first
    second = pool.empty(*large())
    assert second.data_ptr() != place  # a view is still there
    del view
    gc.collect()
    third = pool.empty(*large())
    assert third.data_ptr() == place
    assert heap.asked == 2
    assert heap.freed == 0


def test_the_tensor_is_an_ordinary_one(heap):
    tensor = Pool(heap.allocate, heap.release).empty(*large(3, torch.bfloat16))
    assert tensor.shape == (3, LARGE // 4)
    assert tensor.dtype == torch.bfloat16
    assert tensor.is_contiguous()
    tensor.fill_(2.0)
    assert float(tensor.float().sum()) == 6 * LARGE // 4
    assert torch.equal(tensor.clone(), tensor)


def test_what_waits_is_never_more_than_what_was_in_use_at_once(heap):
    pool = Pool(heap.allocate, heap.release)
    for rows in (1, 3, 9, 27):  # none fits into the one before
        pool.empty(*large(rows))
    assert heap.asked == 4
    waiting = sum(len(block) for block in heap.blocks.values())
    assert waiting <= 27 * LARGE
    for _ in range(5):
        tensors = [pool.empty(*large(9)), pool.empty(*large(9))]
        del tensors
    assert sum(len(block) for block in heap.blocks.values()) <= 27 * LARGE


def test_a_block_more_than_twice_as_large_is_not_taken(heap):
    pool = Pool(heap.allocate, heap.release)
    pool.empty(*large(5))
    assert pool.empty(*large(2)).numel() == 2 * LARGE // 4
    assert heap.asked == 2


def test_small_results_are_torch_s_business(heap):
    assert Pool(heap.allocate, heap.release).empty(torch.empty(0), (3, 4)).shape == (3, 4)
    assert heap.asked == 0


def test_no_memory_is_an_error_with_a_cure():
    with pytest.raises(MemoryError, match="needs 1 MB for its result. Make the batch smaller"):
        Pool(lambda size: None, lambda address: None).empty(*large())


def test_a_garbage_collection_within_the_pool_does_no_harm(heap):
    """It ends a tensor while the pool holds its lock; the next request gets the block."""

    class Cycle:
        pass

    def allocate(size):
        gc.collect()
        return heap.allocate(size)

    pool = Pool(allocate, heap.release)
    cycle = Cycle()
    cycle.me, cycle.tensor = cycle, pool.empty(*large())
    place = cycle.tensor.data_ptr()
    gone = weakref.ref(cycle)
    gc.disable()
    try:
        del cycle
        assert gone() is not None  # until somebody collects
        second = pool.empty(*large())
        assert gone() is None
    finally:
        gc.enable()
    assert second.data_ptr() != place
    assert pool.empty(*large()).data_ptr() == place
    assert (heap.asked, heap.freed) == (2, 0)


def test_waiting_blocks_are_freed_before_memory_runs_out():
    heap = Heap()
    pool = Pool(
        lambda size: None if heap.blocks and size > LARGE else heap.allocate(size), heap.release
    )
    pool.empty(*large())
    assert (
        pool.empty(*large(3)).numel() == 3 * LARGE // 4
    )  # only possible once the waiting block is gone
    assert heap.freed == 1


def test_threads_do_not_share_a_block(heap):
    pool = Pool(heap.allocate, heap.release)
    wrong = []

    def work(number):
        for _ in range(50):
            tensor = pool.empty(*large())
            tensor.fill_(number)
            if not bool((tensor == number).all()):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
