"""Quantise a model's weights with mlx-lm's own conversion, once, when the model is made."""

from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.files import write_json
from kvpeak.inputs.model_folder import CONFIG
from kvpeak.live.loading import load_model, mlx_lm_program, said


def convert(folder: Path, asked: dict) -> None:
    """Put quantised weights and their config.json in the place of those in `folder`.

    `asked` has bits, group_size and mode, each of which mlx-lm's mode may supply; a GGUF's tensors
    are dequantised first. Raises UserError.
    """
    old = [*folder.glob("model*.safetensors"), *folder.glob("*.gguf")]
    model, config = load_model(folder, weights="real", dtype=asked.get("dtype"), seed=0)
    utils = mlx_lm_program("utils")
    try:
        model, config = utils.quantize_model(
            model, config, asked.get("group_size"), asked.get("bits"), asked.get("mode", "affine")
        )
    except Exception as error:  # mlx-lm and MLX raise anything
        raise UserError(f"quantize: {said(error)}") from None
    utils.save_model(folder / "quantised", model, donate_model=True)
    for path in old:
        path.unlink()
    for path in (folder / "quantised").iterdir():
        path.rename(folder / path.name)
    (folder / "quantised").rmdir()
    write_json(folder / CONFIG, config)
