"""Load a folder of models/ as an mlx-lm model: safetensors, a llama GGUF, or seeded random weights.

A process that needs another BLAS loads it before it imports this module, which imports MLX.
"""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from kvpeak.base.errors import UserError
from kvpeak.base.model_config import code_key, dtype_of
from kvpeak.inputs import gguf
from kvpeak.inputs.model_folder import RECORD, read_config, verify_model
from kvpeak.inputs.weights_check import check_weights

LONGEST_REASON = 200  # characters

# Random matrices as wide as the classes make them let a model repeat one token for ever.
RANDOM_SCALE = 3

# mx.load leaves safetensors on disk until they are evaluated, and then reads them into buffers of
# the allocator; GGUF tensors are copied at once. No weight stays a mapped file.
WEIGHTS_MAPPED = False


def load_model(
    folder: Path, *, weights: str, dtype: str | None, seed: int
) -> tuple[nn.Module, dict]:
    """The model of `folder` with all its parameters in memory, and its config.

    `weights` is `real` or `random`; random needs nothing but config.json. `dtype` None keeps what
    the files or the config say. Raises UserError when the folder does not hold what is asked for,
    or, if there is a model.json, just what that says.
    """
    if (folder / RECORD).exists():
        verify_model(folder, weights=weights == "real")
    config = read_config(folder)
    refuse_code(config, folder)
    if weights == "random":
        return random_model(config, seed, dtype), config
    if any(folder.glob("model*.safetensors")):
        check_weights(folder)
        return _load_safetensors(folder, dtype)
    ggufs = sorted(folder.glob("[!.]*.gguf"))
    if len(ggufs) == 1:
        return _load_gguf(ggufs[0], config, dtype), config
    raise UserError(
        f"{folder}: expected model*.safetensors or exactly one .gguf file, found {len(ggufs)} of "
        "these; make the model again, or set weights: random"
    )


def refuse_code(config: dict, folder: Path) -> None:
    """Raise UserError if a config asks for code of its own: mlx-lm before 0.32 would run it."""
    if key := code_key(config):
        raise UserError(
            f"{folder / 'config.json'}: {key}: asks for a custom module to be run; "
            "only models that mlx-lm has are loaded"
        )


def random_model(config: dict, seed: int, dtype: str | None) -> nn.Module:
    """The config's model class with weights that depend on nothing but `config` and `seed`.

    Each parameter is drawn as its class draws it, matrices then times RANDOM_SCALE. `dtype` None
    takes the config's. Quantised when the config says so.
    """
    dtype = dtype or dtype_of(config) or "float32"
    mx.random.seed(seed)
    model = build(config)
    model.apply(lambda p: p * RANDOM_SCALE if p.ndim > 1 else p)
    model.set_dtype(_dtype(dtype))
    if how := config.get("quantization"):
        _quantize(model, how)
    _materialise(model)
    return model


def build(config: dict) -> nn.Module:
    """The config's model with the weights that its class draws, none of them evaluated yet.

    Whatever its size, it takes no memory until something is computed. Raises UserError.
    """
    model_class, args_class = model_classes(config)
    try:
        model = model_class(args_class.from_dict(config))
    except Exception as error:  # the classes of mlx-lm raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"config.json: mlx-lm cannot build a {config['model_type']} from it: {reason}"
        ) from None
    model.eval()
    return model


def model_classes(config: dict) -> tuple[type, type]:
    """mlx-lm's (Model, ModelArgs) for the config.

    mlx-lm's own lookup, which also knows other names of a model type, is asked only where the
    type alone does not decide: importing it takes seconds.
    """
    model_type = config.get("model_type")
    try:
        if "architectures" not in config and _mlx_lm_has(model_type):
            module = mlx_lm_module(model_type)
            return module.Model, module.ModelArgs
        from mlx_lm.utils import _get_classes

        return _get_classes(config)
    except SystemExit:  # its olmo ends the process where a package is missing
        raise UserError(
            f"config.json: model_type: {model_type!r}: mlx-lm's own module for it needs a package "
            "that is not installed"
        ) from None
    except (AttributeError, ImportError, KeyError, TypeError, ValueError):
        raise UserError(
            f"config.json: model_type: {model_type!r}: expected a model type that mlx-lm has"
        ) from None


def _mlx_lm_has(model_type: str) -> bool:
    _light_mlx_lm()
    return importlib.util.find_spec(f"mlx_lm.models.{model_type}") is not None


def mlx_lm_module(name: str) -> ModuleType:
    """The module mlx_lm.models.`name`, imported without transformers."""
    _light_mlx_lm()
    return importlib.import_module(f"mlx_lm.models.{name}")


def mlx_lm_program(name: str) -> ModuleType:
    """The module mlx_lm.`name`, with all that it imports."""
    _light_mlx_lm()
    return importlib.import_module(f"mlx_lm.{name}")


def _light_mlx_lm() -> None:
    """Register the package mlx_lm without running its __init__, which imports transformers.

    mlx_lm.models needs none of that, and it would be most of a short cell's time. The first use
    of a name that __init__ defines runs it after all.
    """
    if "mlx_lm" in sys.modules:
        return
    spec = importlib.util.find_spec("mlx_lm")
    package = importlib.util.module_from_spec(spec)

    def run_init(name: str):
        del package.__getattr__
        spec.loader.exec_module(package)
        return getattr(package, name)

    package.__getattr__ = run_init
    sys.modules["mlx_lm"] = package


def _load_safetensors(folder: Path, dtype: str | None) -> tuple[nn.Module, dict]:
    from mlx_lm.utils import load_model as mlx_lm_load

    try:
        model, config = mlx_lm_load(folder, lazy=True)
    except Exception as error:  # MLX and mlx-lm raise anything for a damaged file or config
        raise UserError(f"{folder}: mlx-lm cannot load it: {said(error)}") from None
    if dtype:
        model.set_dtype(_dtype(dtype))
    _materialise(model)
    return model, config


def _load_gguf(path: Path, config: dict, dtype: str | None) -> nn.Module:
    model = build(config)
    packed = config.get("quantization")
    if packed:
        _quantize(model, packed)
    weights = gguf.llama_weights(path, _dtype(dtype or "float32"), packed=bool(packed))
    try:
        model.load_weights(list(weights.items()))
    except ValueError as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from None
    _materialise(model)
    return model


def _quantize(model: nn.Module, how: dict) -> None:
    """Give the model quantised layers as mlx-lm's conversion does.

    Entries of `how` by layer go before what the model's own class asks for, which goes before the
    whole: a layer that cannot be divided into groups stays as it is.
    """
    own = getattr(model, "quant_predicate", None)

    def choose(path: str, module: nn.Module):
        if path in how:
            return how[path]
        if not hasattr(module, "to_quantized") or module.weight.shape[-1] % how["group_size"]:
            return False
        return own(path, module) if own else True

    try:
        nn.quantize(
            model,
            group_size=how["group_size"],
            bits=how["bits"],
            mode=how.get("mode", "affine"),
            class_predicate=choose,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"config.json: quantization: {said(error)}") from None


def _materialise(model: nn.Module) -> None:
    """Evaluate the parameters one by one, largest first, and give the scratch memory back.

    So that loading does not decide the process's peak, nor leaves free buffers in the pool.
    """
    parameters = [value for _, value in tree_flatten(model.parameters())]
    for parameter in sorted(parameters, key=lambda p: p.nbytes, reverse=True):
        mx.eval(parameter)
        mx.clear_cache()


def _dtype(name: str) -> mx.Dtype:
    dtypes = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
    if name not in dtypes:
        raise UserError(f"dtype: {name}: expected one of {', '.join(dtypes)}")
    return dtypes[name]


def said(error: Exception) -> str:
    """What an error of mlx-lm's says, in the beginning of one line.

    Of a call with the wrong arguments the list of the right ones is left out.
    """
    text = " ".join(str(error).split()) or type(error).__name__
    text = text.split(". The following argument types are supported:")[0]
    return text if len(text) <= LONGEST_REASON else text[:LONGEST_REASON] + "…"
