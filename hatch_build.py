"""Part of the package's build: compile the native kernel, if there is a compiler. Without one the package installs as well."""

import importlib.util
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeKernel(BuildHookInterface):
    """Builds the libraries beside their source, where an editable install finds them too."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a wheel or an editable install is put together."""
        if self.target_name != "wheel":
            return
        folder = Path(self.root) / "src" / "torchleap" / "native"
        spec = importlib.util.spec_from_file_location("build_kernel", folder / "build.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        try:
            built = module.build()
        except OSError as error:
            sys.stderr.write(
                f"torchleap installs without its native kernel, which is slower: {error}\n"
            )
            return
        build_data["artifacts"] += [str(path.relative_to(self.root)) for path in built]
        build_data["pure_python"] = False
        build_data["tag"] = (
            f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        )
