"""Predict a model's peak memory under Candle's buffer pool; the command is kvpeak.commands.predict."""

import sys

from kvpeak.base.program import main
from kvpeak.commands import predict

if __name__ == "__main__":
    sys.exit(main(predict, name="predict_peak"))
