"""Public sets are fetched once, verified, and only if their terms allow it."""

import functools
import http.server
import threading
from hashlib import md5

import pytest

import torchleap as tl


@pytest.fixture
def server(tmp_path):
    """A server on this machine that has a file."""
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "ml-1m.zip").write_bytes(b"a data set" * 100_000)
    handler = functools.partial(
        http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "served")
    )
    handler.log_message = lambda *_: None  # type: ignore[attr-defined]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}/ml-1m.zip"
        running.shutdown()


def test_movielens_is_fetched_once_and_verified(server, tmp_path):
    right = md5(b"a data set" * 100_000).hexdigest()
    seen = []
    path = tl.data.download(
        "movielens_1m",
        tmp_path / "data",
        address=server,
        checksum=right,
        progress=lambda *s: seen.append(s),
    )
    assert path.read_bytes() == b"a data set" * 100_000
    assert seen[-1] == ("downloading", 1_000_000, 1_000_000)
    again = tl.data.download(
        "movielens_1m", tmp_path / "data", address="http://127.0.0.1:1/nowhere", checksum=right
    )
    assert again == path


def test_what_comes_damaged_or_not_at_all_leaves_no_file(server, tmp_path):
    with pytest.raises(tl.DataError, match="expected the MD5 0000, but found"):
        tl.data.download("movielens_1m", tmp_path / "data", address=server, checksum="0000")
    with pytest.raises(tl.DataError, match="cannot be reached"):
        tl.data.download("movielens_1m", tmp_path / "data", address=server + ".nowhere")
    assert not list((tmp_path / "data").iterdir())


def test_sets_that_may_not_be_fetched_and_unknown_ones_are_refused(tmp_path):
    with pytest.raises(
        tl.DataError, match="criteo may not be fetched for you.*put its train.txt into"
    ):
        tl.data.download("criteo", tmp_path)
    with pytest.raises(
        tl.DataError, match="There is no data set 'movielens'. Did you mean 'movielens_1m'"
    ):
        tl.data.download("movielens", tmp_path)
