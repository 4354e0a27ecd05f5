"""Whether the memory of processes levels off. Only growth over the run is judged, so a busy machine changes nothing."""

from collections.abc import Callable, Mapping
from statistics import median

import anyio
import psutil

SAMPLE_SECONDS = 1.0
LARGEST_GROWTH = 1.2
"""Of the last third of a run over its middle third. Medians, so that no single peak counts; the first third is the warm-up."""


def resident_mb(process: int) -> float:
    """Resident memory in MB (10⁶ bytes)."""
    return float(psutil.Process(process).memory_info().rss / 1e6)


async def sample(processes: Callable[[], Mapping[str, int]], into: dict[str, list[float]]) -> None:
    """Sample the resident memory of each process, by name, until cancelled."""
    while True:
        for name, process in processes().items():
            into.setdefault(name, []).append(resident_mb(process))
        await anyio.sleep(SAMPLE_SECONDS)


def thirds(samples: list[float]) -> tuple[float, float, float]:
    """The medians of the three thirds of a run."""
    size = len(samples) // 3
    return median(samples[:size]), median(samples[size : 2 * size]), median(samples[2 * size :])


def levels_off(samples: list[float]) -> bool:
    """Whether the last third of a run needs at most `LARGEST_GROWTH` times the memory of the middle third."""
    _, middle, last = thirds(samples)
    return last <= LARGEST_GROWTH * middle
