"""In which order the cells of one round are measured."""

import random

from kvpeak.base.axes import AXES, Cell


def balanced_order(cells: list[Cell], sides: str, tokens: dict[str, int], seed: int) -> list[Cell]:
    """The cells in the order of the first round; the next round goes backwards.

    Blocks of cells that differ only in the prompt and on the axis `sides` (of the first comparison)
    come in an order drawn from the seed. Within a block, prompts go from short to long, so that a
    longer one can be skipped when a shorter one did not fit; the sides of a prompt are neighbours,
    and which of them comes first alternates, from a drawn start: A B, B A, A B.
    """
    blocks: dict[tuple, dict[str, list[Cell]]] = {}
    for cell in cells:
        names = cell.as_dict()
        block = tuple(names[axis] for axis in AXES if axis not in ("prompt", sides))
        blocks.setdefault(block, {}).setdefault(cell.prompt, []).append(cell)
    draw = random.Random(seed)
    backwards = draw.random() < 0.5
    order = []
    for block in draw.sample(list(blocks), len(blocks)):
        for prompt in sorted(blocks[block], key=tokens.get):
            neighbours = blocks[block][prompt]
            order += reversed(neighbours) if backwards else neighbours
            backwards = not backwards
    return order
