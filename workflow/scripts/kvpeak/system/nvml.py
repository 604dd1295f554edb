"""What an NVIDIA GPU says about itself and about one process, through NVML (nvidia-ml-py).

NVML keeps no peak of a process's memory: it is sampled, so the peak found is a lower bound.
"""

import ctypes
from types import ModuleType

from kvpeak.base.errors import UserError
from kvpeak.base.numbers import MIB

# nvml.h: nvmlClocksEventReasons, in the order of their bits. The first four are not a fault of the
# machine.
REASONS = {
    0x1: "idle",
    0x2: "application clocks setting",
    0x4: "software power cap",
    0x10: "sync boost",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks setting",
}
SLOWED = 0x8 | 0x20 | 0x40 | 0x80


class Gpu:
    """One GPU, and the most memory that one process was seen to take on it. `nvml` is pynvml."""

    def __init__(self, nvml: ModuleType, handle):
        self._nvml = nvml
        self._handle = handle
        self._used_at_start = self._used_mib()
        self._peak_process: float | None = None
        self._peak_growth = 0.0
        self._reasons = 0

    @property
    def uuid(self) -> str:
        return self._nvml.nvmlDeviceGetUUID(self._handle)

    def sample(self, pid: int) -> float | None:
        """The device memory that process `pid` takes now, in MiB; None if NVML does not show it."""
        self._peak_growth = max(self._peak_growth, self._used_mib() - self._used_at_start)
        used = [use for process, use in self._processes() if process == pid and use is not None]
        if not used:
            return None
        self._peak_process = max(self._peak_process or 0.0, sum(used))
        return sum(used)

    def sample_clocks(self) -> None:
        """Remember why the clocks are held down now."""
        self._reasons |= self._ask("nvmlDeviceGetCurrentClocksEventReasons", self._handle) or 0

    def peak(self) -> tuple[float | None, str | None]:
        """The peak of the sampled process in MiB, and where it was read.

        In a container NVML may show other process ids, or none; then it is by how much the memory
        used on the whole device grew.
        """
        if self._peak_process is not None:
            return self._peak_process, "NVML, the process, sampled (a lower bound)"
        if self._peak_growth:
            return self._peak_growth, "NVML, growth of the whole device, sampled (a lower bound)"
        return None, None

    def slowed(self) -> list[str]:
        """Why the clocks were held down against the machine's will, over all sample_clocks()."""
        return reason_names(self._reasons & SLOWED)

    def state(self) -> dict:
        """Name, driver, clocks, temperature and processes now; null for what the card does not
        say.
        """
        nvml, handle = self._nvml, self._handle
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        milliwatts = self._ask("nvmlDeviceGetPowerUsage", handle)
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        return {
            "name": self._ask("nvmlDeviceGetName", handle),
            "uuid": self._ask("nvmlDeviceGetUUID", handle),
            "driver": self._ask("nvmlSystemGetDriverVersion"),
            "memory_mib": memory and memory.total / MIB,
            "used_mib": memory and memory.used / MIB,
            "sm_clock_mhz": self._ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": self._ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_MEM),
            "temperature_c": self._ask(
                "nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU
            ),
            "power_w": milliwatts and milliwatts / 1000,
            "clock_reasons": None if reasons is None else reason_names(reasons),
            "processes": [
                {"pid": pid, "used_mib": used} for pid, used in sorted(self._processes())
            ],
        }

    def joules(self) -> float | None:
        """What the GPU has taken since its driver was loaded; None where it does not count."""
        millijoules = self._ask("nvmlDeviceGetTotalEnergyConsumption", self._handle)
        return None if millijoules is None else millijoules / 1000

    def _used_mib(self) -> float:
        memory = self._ask("nvmlDeviceGetMemoryInfo", self._handle)
        return memory.used / MIB if memory else 0.0

    def _processes(self) -> list[tuple[int, float | None]]:
        """(process id, MiB or None where the driver does not say) of all on the GPU."""
        found = {}
        for name in ("Compute", "Graphics"):
            for process in self._ask(f"nvmlDeviceGet{name}RunningProcesses", self._handle) or []:
                used = process.usedGpuMemory
                found[process.pid] = None if used is None else used / MIB
        return list(found.items())

    def _ask(self, function: str, *arguments):
        """The answer of an NVML function; None where this card, driver or library has none."""
        asked = getattr(self._nvml, function, None)
        try:
            return asked(*arguments) if asked else None
        except self._nvml.NVMLError:
            return None


def reason_names(mask: int) -> list[str]:
    """The bits of nvmlClocksEventReasons in words."""
    return [name for bit, name in REASONS.items() if mask & bit]


def chosen_gpu(request_gpu: int | None, visible: str | None) -> str | None:
    """Which GPU a cell gets: the request's, else the first of CUDA_VISIBLE_DEVICES, else "0".

    An index in PCI order or a UUID; None if CUDA_VISIBLE_DEVICES hides all.
    """
    if request_gpu is not None:
        return str(request_gpu)
    first = "0" if visible is None else visible.split(",")[0].strip()
    return first if first.isdigit() or first.startswith(("GPU-", "MIG-")) else None


def open_gpu(selector: str | None, nvml: ModuleType | None = None) -> Gpu | None:
    """The GPU of an index or UUID; None if this machine has no NVIDIA driver or selector is None.

    Raises UserError if there is a driver, but no such GPU.
    """
    nvml = nvml or _nvml()
    if nvml is None or selector is None:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    find = nvml.nvmlDeviceGetHandleByIndex if selector.isdigit() else nvml.nvmlDeviceGetHandleByUUID
    try:
        return Gpu(nvml, find(int(selector) if selector.isdigit() else selector))
    except nvml.NVMLError as error:
        count = nvml.nvmlDeviceGetCount()
        raise UserError(f"GPU {selector}: {error}; this machine has {count}, from 0") from None


def _nvml() -> ModuleType | None:
    """pynvml where the driver's library is; importing it elsewhere would only cost memory."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    import pynvml

    return pynvml
