//! Build script of the emulated GPU: compiles the CUDA kernels for the host CPU. Kernels that depend on the attention
//! shape are compiled once for each shape of the tests and each format of the KV cache.

#[path = "../../gpu/src/cuda/shapes.rs"]
#[expect(unreachable_pub, reason = "the file is a module of tiercel-gpu, which exports the items")]
#[expect(dead_code, reason = "the build script needs the shapes and their definitions only")]
mod shapes;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

/// Length of a span (the stretch of positions that attention computes separately) in tests, positions: short, so that
/// tests can fill several spans.
const SPAN: usize = 32;
const PLAIN: [(&str, &[&str]); 6] = [
    (
        "rows.cu",
        &[
            "embed",
            "add_rms_norm",
            "head_rms_norm",
            "add_bias",
            "silu_mul",
            "gather_rows",
            "move_words",
        ],
    ),
    ("quantized.cu", &["decode_rows", "embed_quantized"]),
    ("products.cu", &PRODUCTS),
    ("product_tiles.cu", &["multiply_bf16_tiles"]),
    ("kv_write.cu", &["rope_kv_write", "rope_kv_write_q8"]),
    ("sample.cu", &["sample"]),
];
const PRODUCTS: [&str; 16] = [
    "multiply_int4_8",
    "multiply_int4_16",
    "multiply_int4_32",
    "multiply_int4_64",
    "multiply_int8_8",
    "multiply_int8_16",
    "multiply_int8_32",
    "multiply_int8_64",
    "multiply_fp8_8",
    "multiply_fp8_16",
    "multiply_fp8_32",
    "multiply_fp8_64",
    "multiply_bf16_8",
    "multiply_bf16_16",
    "multiply_bf16_32",
    "multiply_bf16_64",
];
const SHAPED: [(&str, &[&str]); 2] =
    [("attention_rows.cu", &["attention_rows"]), ("attention_prefill.cu", &["attention_prefill"])];

fn main() {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"));
    let unit = out.join("kernels.cpp");
    fs::write(&unit, source()).expect("the output directory takes files");
    for folder in [here.join("cpp"), here.join("../../gpu/kernels")] {
        println!("cargo::rerun-if-changed={}", folder.display());
    }
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .opt_level(2)
        // Forbid the compiler to fuse multiply and add, which would round differently from build to build.
        .flag("-ffp-contract=off")
        // Coroutines of the emulator leave their stacks by `longjmp`, which the fortified libc functions report as an
        // error.
        .flag("-U_FORTIFY_SOURCE")
        .flag("-Wno-unknown-pragmas")
        // Let a misaligned access end the process with an illegal instruction: a GPU reports it as an error of the
        // device, where the host's processor would accept it.
        .flag_if_supported("-fsanitize=alignment")
        .flag_if_supported("-fsanitize-undefined-trap-on-error")
        .include(here.join("cpp"))
        .include(here.join("../../gpu/kernels"))
        .file(unit)
        .file(here.join("cpp/emulator.cpp"))
        .compile("tiercel_emulated");
}

/// Returns a C++ source with all kernels and a table of their names. A kernel that depends on the attention shape and
/// on the format of the KV cache has both in its name.
fn source() -> String {
    let mut text = String::new();
    for header in ["cuda.h", "emulator.h", "device.cuh", "kv.cuh", "weights.cuh"] {
        writeln!(text, "#include \"{header}\"").expect("a string takes text");
    }
    let mut names = Vec::new();
    for (file, kernels) in PLAIN {
        writeln!(text, "#include \"{file}\"").expect("a string takes text");
        names.extend(kernels.iter().map(|kernel| (*kernel).to_owned()));
    }
    for ((head_dim, queries), q8) in
        shapes::tested_shapes().flat_map(|shape| [false, true].map(|q8| (shape, q8)))
    {
        let format = shapes::kv_format(q8);
        let definitions = shapes::definitions(head_dim, queries, q8, SPAN);
        let defined: String =
            definitions.iter().map(|(name, value)| format!("#define {name} {value}\n")).collect();
        let undefined: String =
            definitions.iter().map(|(name, _)| format!("#undef {name}\n")).collect();
        for (file, kernels) in &SHAPED[..if shapes::has_tiles(head_dim) { 2 } else { 1 }] {
            writeln!(
                text,
                "{defined}#define KERNEL(name) name##_{head_dim}_{queries}_{format}\n\
                 namespace of_{}_{head_dim}_{queries}_{format} {{\n#include \"{file}\"\n}}\n\
                 using namespace of_{0}_{head_dim}_{queries}_{format};\n{undefined}#undef KERNEL",
                file.trim_end_matches(".cu")
            )
            .expect("a string takes text");
            let of_shape = |kernel: &&str| format!("{kernel}_{head_dim}_{queries}_{format}");
            names.extend(kernels.iter().map(of_shape));
        }
    }
    text.push_str("const emulated::Entry emulated::entries[] = {\n");
    for name in names {
        writeln!(text, "    {{\"{name}\", emulated::call<{name}>}},").expect("a string takes text");
    }
    text.push_str("    {nullptr, nullptr},\n};\n");
    text
}
