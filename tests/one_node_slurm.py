"""A real SLURM of one node on this machine, for as long as a block lasts: munged, slurmctld,
slurmd.

It needs root and Debian's slurmctld, slurmd, slurm-client and munge. Its configuration has to be
/etc/slurm/slurm.conf, because a job does not see the variable that names another file; a machine
that has one already is left alone.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

CONF = Path("/etc/slurm/slurm.conf")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "sinfo")
LINES = """ClusterName=kvpeak
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
ReturnToService=2
MpiDefault=none
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={mib} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def why_not() -> str:
    """Why no SLURM can be started here, or ''."""
    if sys.platform != "linux" or os.getuid() != 0:
        return "starting a SLURM needs root on Linux"
    missing = [program for program in PROGRAMS if not shutil.which(program)]
    if missing:
        return f"no {missing[0]} here; apt-get install slurmctld slurmd slurm-client munge"
    return f"{CONF} is there: this machine has a SLURM of its own" if CONF.exists() else ""


@contextlib.contextmanager
def running(folder: Path) -> Iterator[None]:
    """Start it with its state in `folder`; stop all that was started."""
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    host = socket.gethostname().split(".")[0]
    with contextlib.ExitStack() as started:
        CONF.write_text(
            LINES.format(folder=folder, host=host, cpus=os.cpu_count(), mib=memory * 9 // 10)
        )
        started.callback(CONF.unlink)
        socket_folder = Path("/run/munge")
        socket_folder.mkdir(mode=0o755, exist_ok=True)
        shutil.chown(socket_folder, "munge", "munge")
        daemons = [
            ["runuser", "-u", "munge", "--", "munged", "--foreground"],
            ["slurmctld", "-D", "-i"],
            ["slurmd", "-D"],
        ]
        if (
            subprocess.run(["munge", "--no-input"], capture_output=True, check=False).returncode
            == 0
        ):
            del daemons[0]  # it runs as a service
        for number, command in enumerate(daemons):
            log = started.enter_context((folder / f"{number}.out").open("wb"))
            daemon = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            started.callback(stop, daemon)
        wait_until_idle(folder)
        yield


def wait_until_idle(folder: Path) -> None:
    """Wait for the node, at most a minute."""
    deadline = time.monotonic() + 60
    shown = ""
    while "idle" not in shown:
        if time.monotonic() > deadline:
            logs = "\n".join(file.read_text(errors="replace") for file in folder.glob("*.*"))
            raise RuntimeError(f"SLURM did not start: {shown}\n{logs[-4000:]}")
        time.sleep(0.2)
        asked = ["sinfo", "--noheader", "--format", "%T"]
        shown = subprocess.run(asked, capture_output=True, text=True, check=False).stdout


def stop(daemon: subprocess.Popen) -> None:
    """End a daemon: TERM, and KILL after ten seconds."""
    daemon.terminate()
    try:
        daemon.wait(10)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
