"""Bring a pruned model into production: files that load without code, torch.export, ONNX."""

from .files import MANIFEST, load, manifest, save
from .programs import to_onnx, to_program

__all__ = ["MANIFEST", "load", "manifest", "save", "to_onnx", "to_program"]
