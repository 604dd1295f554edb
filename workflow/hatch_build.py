"""Build the pools' library while an installation is made (hatchling's build hook).

An editable installation, and one without a C++ compiler, leave it out: it is then built at first
use.
"""

import sys
import sysconfig
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SCRIPTS = Path(__file__).parent / "scripts"


class LibraryHook(BuildHookInterface):
    """Adds the compiled policies to the wheel, which then is for this kind of machine alone."""

    def initialize(self, version: str, build_data: dict) -> None:
        if version == "editable":
            return
        sys.path.insert(0, str(SCRIPTS))
        from kvpeak.base.errors import UserError
        from kvpeak.pools import library

        target = Path(self.directory) / library.library_name()
        try:
            library.compile_library(target)
        except UserError as error:
            self.app.display_warning(
                f"without the pools' library, to be built at first use: {error}"
            )
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["force_include"][str(target)] = f"kvpeak/pools/native/{target.name}"

    def finalize(self, version: str, build_data: dict, artifact_path: str) -> None:
        for built in Path(self.directory).glob("libkvpeak_pools-*"):
            built.unlink()
