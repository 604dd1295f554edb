"""What a person sees while Snakemake runs; profiles/default asks for it by `logger: kvpeak`.

Snakemake looks for logger plugins by the names of packages. kvpeak/display has the work.
"""

import logging

from snakemake import cli
from snakemake.logging import ColorizingTextHandler, DefaultFilter, DefaultFormatter
from snakemake_interface_logger_plugins.base import LogHandlerBase

from kvpeak.base.program import shows_all
from kvpeak.display.run import Run
from kvpeak.display.screen import open_screen


def _say(text: str, **_) -> None:
    open_screen().line(text)


# What the file of Snakemake's log cannot hold in this locale's encoding is not in it. Python would
# say so with a traceback for each line.
logging.raiseExceptions = False
# Before it has a logger, Snakemake prints which profile it takes, in 92 columns.
cli.print = _say


class LogHandler(LogHandlerBase):
    """Shows a run of cells in a few lines, and everything else as Snakemake itself does."""

    writes_to_stream = True
    writes_to_file = False
    has_filter = True
    has_formatter = True
    needs_rulegraph = False

    def __post_init__(self) -> None:
        given = self.common_settings
        self.run = None
        if shows_all() or given.dryrun or given.verbose or given.printshellcmds or given.quiet:
            self._plain = ColorizingTextHandler(nocolor=given.nocolor)
            self._plain.setFormatter(DefaultFormatter(given.quiet, given.show_failed_logs))
            self._plain.addFilter(
                DefaultFilter(
                    given.quiet,
                    given.debug_dag,
                    given.verbose,
                    given.dryrun,
                    given.printshellcmds,
                )
            )
        else:
            self.run = Run(open_screen(given.nocolor))

    def emit(self, record) -> None:
        if self.run is None:
            self._plain.handle(record)
            return
        try:
            event = getattr(record, "event", None)
            taken = self.run.take(str(event), record.__dict__, record.created) if event else False
            if not taken:
                self.run.message(record.getMessage(), record.levelno)
        except Exception as error:  # raised here it would end the thread that shows the run
            self.run.failed(error)

    def close(self) -> None:
        if self.run is not None:
            self.run.close()
        super().close()
