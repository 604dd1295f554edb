"""nvidia-ml-py (pynvml) as it answers for one card, without one."""

from types import SimpleNamespace

from kvpeak.system.nvml import MIB

UUID = "GPU-5d2c7a4e-0000-1111-2222-333344445555"


class NotSupported(Exception):
    def __str__(self):
        return "Not Supported"


def process(pid: int, mib: float | None):
    return SimpleNamespace(pid=pid, usedGpuMemory=None if mib is None else int(mib * MIB))


class Nvml:
    """pynvml as it answers for one card. `processes` and `used` (MiB) change from look to look."""

    NVMLError = NotSupported
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, missing: tuple[str, ...] = ()):
        self.processes, self.used, self.reasons = [], 600.0, 0x1
        for name in missing:
            setattr(self, name, self._not_supported)

    def _not_supported(self, *_):
        raise NotSupported

    def nvmlInit(self): ...
    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        raise NotSupported

    def nvmlDeviceGetCount(self):
        return 1

    def nvmlDeviceGetHandleByIndex(self, index):
        if index != 0:
            raise NotSupported
        return "handle"

    def nvmlDeviceGetHandleByUUID(self, uuid):
        assert uuid == UUID
        return "handle"

    def nvmlDeviceGetUUID(self, handle):
        return UUID

    def nvmlDeviceGetName(self, handle):
        return "NVIDIA H200"

    def nvmlSystemGetDriverVersion(self):
        return "570.86.15"

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=143771 * MIB, used=int(self.used * MIB))

    def nvmlDeviceGetClockInfo(self, handle, clock):
        return {self.NVML_CLOCK_SM: 1980, self.NVML_CLOCK_MEM: 3201}[clock]

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return 34

    def nvmlDeviceGetPowerUsage(self, handle):
        return 76_500

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return self.reasons

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return self.processes

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle):
        return []
