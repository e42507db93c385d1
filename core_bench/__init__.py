"""core_bench: find, ablate and exploit the Context-aware Retrieval (CoRe) heads of multimodal LLMs.

    import core_bench
    wrapper = core_bench.load("qwen3vl")
    scores = core_bench.find_heads(wrapper)
    plan = core_bench.HeadPlan.hybrid(wrapper.shape, full=scores.top(5), window=64, sink=4)
    with core_bench.apply(wrapper.model, plan):
        ...

The names above load torch only when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core_bench.api import find_heads, load
    from core_bench.attention import apply
    from core_bench.heads import HeadPlan, HeadScores

__version__ = "0.1.0"
__all__ = ["HeadPlan", "HeadScores", "__version__", "apply", "find_heads", "load"]

_HOME = {
    "HeadPlan": "core_bench.heads",
    "HeadScores": "core_bench.heads",
    "apply": "core_bench.attention",
    "find_heads": "core_bench.api",
    "load": "core_bench.api",
}


def _check_links() -> None:
    """git with core.symlinks=false leaves text files where the three linked folders belong."""
    for name in ("tasks", "model_wrappers", "kernels"):
        if not (Path(__file__).parent / name).is_dir():
            raise ImportError(
                f"core_bench/{name}: expected a link to the folder {name}/, got a plain file or nothing; "
                "run `git config core.symlinks true && git checkout -- core_bench`, or install the wheel"
            )


_check_links()


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value  # the next look-up does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
