"""How a model's weights lie in Candle's pools."""

from kvpeak.inputs.shapes import ITEMSIZE, Shapes, weight_tensors
from kvpeak.replay.pools import SHARED, Pool, size_class


def load_weights(pool: Pool, shapes: Shapes) -> None:
    """Load every tensor as Candle does: one upload of exactly its size.

    A type other than the checkpoint's is made on the device (VarBuilder::get: the tensor is
    uploaded as it is stored, then to_dtype). The weights then lie in private buffers, whose sizes
    are powers of two, and the uploads are free: they stay in the shared heap until the host waits.
    """
    for nbytes in weight_tensors(shapes):
        if not shapes.cast:
            pool.upload(nbytes)
            continue
        upload = pool.upload(nbytes // shapes.itemsize * ITEMSIZE[shapes.stored])
        pool.take(nbytes)
        pool.give(upload, SHARED)


def weights_bytes(shapes: Shapes) -> int:
    """What the weights hold once they are loaded."""
    return sum(size_class(n) if shapes.cast else n for n in weight_tensors(shapes))
