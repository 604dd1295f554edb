"""Make a model's folder: config.json, weights, tokenizer.json, and model.json with their hashes."""

import sys

from kvpeak.base.program import main

if __name__ == "__main__":
    sys.exit(main("kvpeak.commands.make_model"))
