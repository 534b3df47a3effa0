"""A bar for what takes long, by tqdm or rich where one of them is installed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def with_progress(items: Iterable[Any], what: str, show: bool) -> Iterable[Any]:
    """The items, with a bar where it is asked for and can be drawn."""
    if not show:
        return items
    try:
        from tqdm.auto import tqdm
    except ImportError:
        pass
    else:
        return tqdm(items, desc=what)
    try:
        from rich.progress import track
    except ImportError:
        return items
    return track(items, description=what)
