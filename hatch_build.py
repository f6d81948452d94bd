"""Compile the native kernel in the package's build; without a compiler, install without it."""

import importlib.util
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeKernel(BuildHookInterface):
    """Builds the libraries beside their sources, where an editable install finds them too."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before a wheel or an editable install is put together."""
        if self.target_name != "wheel":
            return
        path = Path(self.root) / "src" / "torchleap" / "native" / "build.py"
        spec = importlib.util.spec_from_file_location("build_kernel", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        try:
            built = module.build()
        except OSError as error:
            sys.stderr.write(
                f"torchleap installs without its native kernel, which is slower: {error}\n"
            )
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["artifacts"] += [str(path.relative_to(self.root)) for path in built]
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
