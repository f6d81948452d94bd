"""Bring a pruned model into production: files that load without code, torch.export, ONNX."""

from .files import MANIFEST, Saved, load, manifest, save
from .programs import to_onnx, to_program

__all__ = ["MANIFEST", "Saved", "load", "manifest", "save", "to_onnx", "to_program"]
