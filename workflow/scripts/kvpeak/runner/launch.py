"""An engine's process from its start to its end, whichever that is."""

import contextlib
import signal
from collections.abc import Iterator

from kvpeak.protocol.events import Conversation
from kvpeak.protocol.programs import engine_argv
from kvpeak.runner import build_record
from kvpeak.runner.attempt import Attempt
from kvpeak.runner.capped import Capped
from kvpeak.runner.child import Child
from kvpeak.runner.cpu_time import count_cpu_s
from kvpeak.runner.energy import machine_energy, process_energy
from kvpeak.runner.outcome import Ended
from kvpeak.runner.table_output import Table
from kvpeak.runner.watch import Guard, Watch
from kvpeak.runner.watched import Watched
from kvpeak.system import machine, programs
from kvpeak.system.private import temporary_folder
from kvpeak.system.process_memory import memory_of


def run_engine(attempt: Attempt, available_mib: float) -> Ended:
    """Run the engine to its end; its events and messages stay in the attempt's folder.

    available_mib: of the machine before the start, of which the guard takes its share. Raises
    UserError if the program cannot be started or the attempt is stopped, OSError if the folder
    cannot be written.
    """
    energy = machine_energy(attempt.gpu)
    guard = Guard.at_start(attempt.limits.guard_fraction, available_mib, machine.total_mib())
    watched = Watched(_answers(attempt))
    cpu_s = count_cpu_s(attempt.request)
    kills, wall, clock = machine.oom_kills(), attempt.wall(), attempt.clock()
    with Capped(attempt.answers) as raw, _child(attempt) as child:
        memory = memory_of(child.pid)
        energy = energy or process_energy(child.pid)
        Watch(attempt, child, memory, guard, watched, raw, energy).run()
    elapsed_s, wall_s, cpu_s = attempt.clock() - clock, attempt.wall() - wall, cpu_s()
    if energy:
        energy.end()
    return Ended(
        watched=watched,
        pid=child.pid,
        code=child.code,
        killed_for_memory=child.code == -signal.SIGKILL
        and (child.killed_for_memory or machine.oom_kills() > kills),
        peaks=memory.exited(child.usage, watched.conversation.first("done").get("peak_rss_mib")),
        elapsed_s=elapsed_s,
        wall_s=wall_s,
        cpu_s=cpu_s,
        energy=energy and energy.record(watched),
    )


def _answers(attempt: Attempt) -> Conversation | Table:
    """What follows the engine's answer."""
    if attempt.external:
        build_record.verify(attempt.request)
        return Table(attempt.request, attempt.out)
    protocol = attempt.request["protocol"]
    return Conversation(protocol["warmup"], protocol["recorded"])


@contextlib.contextmanager
def _child(attempt: Attempt) -> Iterator[Child]:
    """The engine's process, which is stopped if the block fails, and reaped in any case."""
    environment = programs.engine_environment(*(() if attempt.external else programs.OUR_ENGINES))
    # an engine loads again what it compiled, and nobody else can have put it there
    environment |= {"TMPDIR": str(temporary_folder())} | attempt.request.get("env", {})
    if attempt.gpu:
        environment["CUDA_VISIBLE_DEVICES"] = attempt.gpu.uuid
    folder = attempt.request["external"]["folder"] if attempt.external else None
    argv = engine_argv(attempt.request, attempt.request_file, attempt.out)
    limit_s = attempt.limits.timeout_s
    child = Child(argv, environment, attempt.messages, folder, limit_s)
    try:
        yield child
    except BaseException:
        child.stop(attempt.limits.grace_s)
        raise
    finally:
        child.reap()
