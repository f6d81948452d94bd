import hashlib
import zipfile

import pytest
import torch

from torchleap._common.sealed import DamagedError, digest_of, load_sealed, save_sealed


@pytest.fixture
def path(tmp_path):
    save_sealed({"weight": torch.arange(600_000.0), "step": 3}, tmp_path / "x.pt")
    return tmp_path / "x.pt"


def test_a_sealed_file_is_read_back_also_by_torch(path):
    for content in (load_sealed(path), torch.load(path, weights_only=True)):
        assert content["step"] == 3
        assert torch.equal(content["weight"], torch.arange(600_000.0))


@pytest.mark.parametrize("place", [0, 1_500_000, -200])
def test_a_flipped_bit_is_noticed(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedError, match="its content is not what was written"):
        load_sealed(path)


def test_a_file_that_is_cut_short_or_was_not_sealed_is_refused(path):
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedError, match="it has no digest at its end"):
        load_sealed(path)
    torch.save({}, path)
    with pytest.raises(DamagedError, match="it has no digest at its end"):
        load_sealed(path)


def test_a_file_whose_entries_are_compressed_is_refused(path, monkeypatch):
    def save_compressed(content, target):
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("archive/version", "3\n")
            file.writestr("archive/data.pkl", bytes(1_000_000))

    monkeypatch.setattr(torch, "save", save_compressed)
    save_sealed({}, path)
    with pytest.raises(DamagedError, match="expected tensors that are not packed, but"):
        load_sealed(path)


def test_a_digest_is_the_sha_256_of_a_file(path):
    assert digest_of(path) == hashlib.sha256(path.read_bytes()).hexdigest()
