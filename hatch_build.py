"""Build hook: refuse to pack a checkout whose folder links arrived as text files (git with core.symlinks=false)."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LINKS = ("tasks", "model_wrappers", "kernels")


class LinkGuard(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Exit with one line: without this the build succeeds and ships text files instead of folders."""
        for name in LINKS:
            if not (Path(self.root) / "core_bench" / name).is_dir():
                raise SystemExit(
                    f"core_bench/{name}: expected a link to the folder {name}/, got a plain file or nothing; "
                    "run `git config core.symlinks true && git checkout -- core_bench` and build again"
                )
