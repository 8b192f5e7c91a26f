"""Makes small quantized matrices in the forms of Hugging Face checkpoints, with the floats that they stand for.

    python make_quantized.py AUTOAWQ [OUT_DIR]     # default: quantized/ beside this script

AUTOAWQ is the unpacked source of AutoAWQ 0.2.9. For each case, OUT_DIR/<case>/ holds

    config.json             the quantization_config of the case
    model.safetensors       the matrix as layer.weight, layer.qweight and so on
    expected.safetensors    weight [n, k] f32: the matrix that the quantizing project makes of these tensors

Integers are packed, and all matrices are decoded, by the code of the projects that publish checkpoints in these forms:

    fp8_block                         transformers (Fp8Dequantize)
    fp8_edge                          the formula of weight_dequant in DeepSeek-V3's inference/kernel.py, whose blocks at
                                      the edges are smaller; transformers refuses these
    float_tensor, float_channel,
    float_block                       compressed-tensors (FloatQuantizationCompressor)
    pack4, pack4_zeros, pack8         compressed-tensors (PackedQuantizationCompressor)
    awq                               AutoAWQ (WQLinear_GEMM, dequantize_gemm)
    gptq4_act, gptq4_v2, gptq4_zero,
    gptq8                             GPTQModel (TorchLinear)

The projects multiply integers by scales in f16. Scales are converted to f32 before, so that the products are exact.
"""

import json
import pathlib
import sys
import types

import torch
from compressed_tensors.compressors import FloatQuantizationCompressor, PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from gptqmodel.nn_modules.qlinear.torch import TorchLinear
from gptqmodel.quantization import QuantizeConfig
from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module
from safetensors.torch import save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

E4M3_MAX = 448.0


def save(out, case, config, tensors, expected):
    folder = out / case
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}, indent=1) + "\n")
    tensors = {f"layer.{name}": tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert expected.dtype == torch.float32 and expected.isfinite().all()
    save_file({"weight": expected.contiguous()}, folder / "expected.safetensors")
    print(f"{case}: {tuple(expected.shape)}, std {expected.std():.4f}")


def in_blocks(scales, rows, columns, shape):
    """Repeats the scale of each block for all of its weights. The blocks at the edges may be smaller."""
    return scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)[: shape[0], : shape[1]]


def fp8_weights(weight, block):
    """Quantizes a matrix to E4M3 with a scale for each block."""
    rows, columns = block
    scales = torch.zeros(-(-weight.shape[0] // rows), -(-weight.shape[1] // columns))
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            part = weight[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
            scales[i, j] = part.abs().max() / E4M3_MAX
    return (weight / in_blocks(scales, rows, columns, weight.shape)).to(torch.float8_e4m3fn), scales


def fp8(out):
    for case, shape, block in [("fp8_block", (32, 48), (16, 16)), ("fp8_edge", (20, 40), (16, 32))]:
        weight, scales = fp8_weights(torch.randn(shape), block)
        config = {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "modules_to_not_convert": ["lm_head"],
            "quant_method": "fp8",
            "weight_block_size": list(block),
        }
        if case == "fp8_block":
            expected = Fp8Dequantize(None)._dequantize_one(weight, scales, torch.float32)
        else:
            expected = weight.float() * in_blocks(scales, *block, shape)
        save(out, case, config, {"weight": weight, "weight_scale_inv": scales}, expected)


def float_quantized(out):
    shape, block = (16, 32), (8, 16)
    for strategy, scale_shape in [("tensor", (1,)), ("channel", (shape[0], 1)), ("block", (2, 2))]:
        structure = list(block) if strategy == "block" else None
        weights = QuantizationArgs(num_bits=8, type="float", strategy=strategy, block_structure=structure)
        scheme = QuantizationScheme(targets=["Linear"], weights=weights)
        # The scales are bf16 numbers, as in published checkpoints.
        scales = (torch.rand(scale_shape) * 0.002 + 0.005).bfloat16()
        state = {"weight": torch.randn(shape), "weight_scale": scales.float()}
        packed = FloatQuantizationCompressor.compress(state, scheme)
        expected = FloatQuantizationCompressor.decompress(packed, scheme)["weight"]
        group = {"targets": ["Linear"], "weights": json.loads(weights.model_dump_json())}
        config = {
            "config_groups": {"group_0": group},
            "format": "float-quantized",
            "ignore": ["lm_head"],
            "quant_method": "compressed-tensors",
            "quantization_status": "compressed",
        }
        packed["weight_scale"] = scales
        save(out, f"float_{strategy}", config, packed, expected)


def integers(weight, bits, group, symmetric):
    """Returns scales and zero points [n, groups] for groups of inputs of a matrix [n, k]."""
    parts = weight.reshape(weight.shape[0], -1, group)
    low, high = parts.amin(2).clamp(max=0), parts.amax(2).clamp(min=0)
    most = 2**bits - 1
    if symmetric:
        scales = (2 * torch.maximum(-low, high) / most).half().float()
        return scales, torch.full_like(scales, 2 ** (bits - 1))
    scales = ((high - low) / most).half().float()
    return scales, (-low / scales).round().clamp(0, most)


def pack_quantized(out):
    cases = [
        # case, shape, bits, strategy, group size, symmetric
        ("pack4", (16, 64), 4, "group", 32, True),
        ("pack4_zeros", (20, 64), 4, "group", 16, False),
        ("pack8", (16, 30), 8, "channel", None, True),
    ]
    for case, shape, bits, strategy, group, symmetric in cases:
        weights = QuantizationArgs(
            num_bits=bits, type="int", symmetric=symmetric, strategy=strategy, group_size=group
        )
        scheme = QuantizationScheme(targets=["Linear"], weights=weights)
        weight = 0.1 * torch.randn(shape)
        scales, zeros = integers(weight, bits, group or shape[1], symmetric)
        # compressed-tensors counts zero points from the middle of the range.
        zeros = (zeros - 2 ** (bits - 1)).to(torch.int8)
        state = {"weight": weight, "weight_scale": scales, "weight_zero_point": zeros}
        packed = PackedQuantizationCompressor.compress(state, scheme)
        expected = PackedQuantizationCompressor.decompress(packed, scheme)["weight"]
        config = {
            "config_groups": {
                "group_0": {"targets": ["Linear"], "weights": json.loads(weights.model_dump_json())}
            },
            "format": "pack-quantized",
            "ignore": ["lm_head"],
            "quant_method": "compressed-tensors",
            "quantization_status": "compressed",
        }
        packed["weight_scale"] = scales.half()
        save(out, case, config, packed, expected)


def awq(out, source):
    # The package's own __init__ imports every model; only the linear layer is needed.
    package = types.ModuleType("awq")
    package.__path__ = [str(pathlib.Path(source) / "awq")]
    sys.modules["awq"] = package
    import awq.modules.linear.gemm as gemm

    gemm.get_best_device = lambda: "cpu"
    group, linear = 128, torch.nn.Linear(256, 32, bias=False)
    linear.weight.data = 0.1 * torch.randn(32, 256)
    scales, zeros = integers(linear.weight.data, 4, group, symmetric=False)
    layer = gemm.WQLinear_GEMM.from_linear(linear, 4, group, scales=scales.t(), zeros=zeros.t())
    tensors = {name: getattr(layer, name) for name in ["qweight", "qzeros", "scales"]}
    expected = gemm.dequantize_gemm(layer.qweight, layer.qzeros, layer.scales.float(), 4, group).t()
    config = {
        "bits": 4,
        "group_size": group,
        "modules_to_not_convert": None,
        "quant_method": "awq",
        "version": "gemm",
        "zero_point": True,
    }
    save(out, "awq", config, tensors, expected)


def gptq(out):
    cases = [
        # case, bits, group size, symmetric, order of activations, format
        ("gptq4_act", 4, 32, True, True, "gptq"),
        ("gptq4_v2", 4, 32, False, False, "gptq_v2"),
        ("gptq4_zero", 4, 32, False, False, "gptq"),
        ("gptq8", 8, -1, False, False, "gptq"),
    ]
    for case, bits, group, symmetric, act_order, checkpoint_format in cases:
        n, k = 32, 64
        linear = torch.nn.Linear(k, n, bias=False)
        linear.weight.data = 0.1 * torch.randn(n, k)
        if case == "gptq4_zero":
            # No weight of these outputs is negative, so that their zero points are 0.
            linear.weight.data[::3] = linear.weight.data[::3].abs()
        size = k if group == -1 else group
        scales, zeros = integers(linear.weight.data, bits, size, symmetric)
        order = torch.randperm(k) if act_order else torch.arange(k)
        g_idx = torch.empty(k, dtype=torch.int32)
        g_idx[order] = torch.arange(k, dtype=torch.int32) // size
        layer = TorchLinear(
            bits=bits, group_size=group, sym=symmetric, desc_act=act_order, in_features=k, out_features=n
        )
        layer.pack_original(linear, scales, zeros, g_idx=g_idx)
        names = ["qweight", "qzeros", "scales", "g_idx"]
        stored = layer.scales
        layer.scales = stored.float()
        expected = layer.dequantize_weight().t()
        layer.scales = stored
        if checkpoint_format == "gptq":
            convert_gptq_v2_to_v1_format_module(layer, QuantizeConfig(bits=bits))
        config = {
            "bits": bits,
            "checkpoint_format": checkpoint_format,
            "desc_act": act_order,
            "group_size": group,
            "quant_method": "gptq",
            "sym": symmetric,
        }
        save(out, case, config, {name: getattr(layer, name) for name in names}, expected)


def main():
    torch.manual_seed(1)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    out = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else pathlib.Path(__file__).parent / "quantized")
    fp8(out)
    float_quantized(out)
    awq(out, sys.argv[1])
    gptq(out)
    pack_quantized(out)


if __name__ == "__main__":
    main()
