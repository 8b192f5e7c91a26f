use super::build::{Builder, Value};
use super::*;
use proptest::prelude::*;

fn sample() -> Builder {
    Builder::default()
        .entry("general.architecture", Value::Str("llama".into()))
        .entry("general.alignment", Value::U32(32))
        .entry("llama.rope.freq_base", Value::F32(10_000.0))
        .entry("tokenizer.ggml.add_bos_token", Value::Bool(true))
        .entry("tokenizer.ggml.tokens", Value::Strings(vec!["a".into(), "ö".into(), "".into()]))
        .entry("tokenizer.ggml.scores", Value::F32s(vec![0.5, -1.0]))
        .entry("tokenizer.ggml.token_type", Value::I32s(vec![1, 3, -6]))
        .tensor("a.weight", &[32, 3], 8, vec![7; 34 * 3])
        .tensor("b.weight", &[5], 0, (0..20).collect())
}

fn read(bytes: &[u8]) -> Result<Directory, GgufError> {
    Directory::read(bytes)
}

fn open(builder: &Builder) -> Result<GgufFile, GgufError> {
    GgufFile::open(builder.save().path())
}

#[test]
fn reads_back_what_was_written() {
    let file = open(&sample()).unwrap();
    let meta = file.metadata();
    assert_eq!(meta.str("general.architecture").unwrap(), Some("llama"));
    assert_eq!(meta.u32("general.alignment").unwrap(), Some(32));
    assert_eq!(meta.f32("llama.rope.freq_base").unwrap(), Some(10_000.0));
    assert_eq!(meta.bool("tokenizer.ggml.add_bos_token").unwrap(), Some(true));
    assert_eq!(meta.strings("tokenizer.ggml.tokens").unwrap(), Some(vec!["a", "ö", ""]));
    assert_eq!(meta.f32s("tokenizer.ggml.scores").unwrap(), Some(vec![0.5, -1.0]));
    assert_eq!(meta.i32s("tokenizer.ggml.token_type").unwrap(), Some(vec![1, 3, -6]));
    assert_eq!(meta.str("absent").unwrap(), None);
    let missing = meta.required("absent", Metadata::u32);
    assert!(matches!(missing, Err(GgufError::MissingKey(key)) if key == "absent"));
    let wrong = meta.u32("general.architecture");
    assert!(matches!(wrong, Err(GgufError::WrongType { .. })));
    assert!(matches!(meta.strings("tokenizer.ggml.scores"), Err(GgufError::WrongType { .. })));
    assert!(matches!(meta.f32s("general.architecture"), Err(GgufError::WrongType { .. })));

    let a = file.tensor("a.weight").unwrap();
    assert_eq!((a.dims, a.ggml_type, a.bytes), (&[32u64, 3][..], GgmlType::Q8_0, &[7; 102][..]));
    let b = file.tensor("b.weight").unwrap();
    assert_eq!(b.bytes, (0..20).collect::<Vec<u8>>());
    assert!(file.tensor("c.weight").is_none());
}

#[test]
fn integers_of_every_width_are_read_when_they_fit() {
    let file = open(
        &Builder::default()
            .entry("u8", Value::Raw(0, vec![200]))
            .entry("i8", Value::Raw(1, vec![0xff]))
            .entry("u64", Value::Raw(10, 7u64.to_le_bytes().to_vec()))
            .entry("big", Value::Raw(10, u64::MAX.to_le_bytes().to_vec()))
            .entry("f64", Value::Raw(12, 2.5f64.to_le_bytes().to_vec())),
    )
    .unwrap();
    let meta = file.metadata();
    assert_eq!(meta.u32("u8").unwrap(), Some(200));
    assert!(meta.u32("i8").is_err());
    assert_eq!(meta.u32("u64").unwrap(), Some(7));
    assert!(meta.u32("big").is_err());
    assert_eq!(meta.f32("f64").unwrap(), Some(2.5));
}

#[test]
fn every_truncation_is_an_error() {
    let bytes = sample().bytes();
    for len in 0..bytes.len() {
        assert!(read(&bytes[..len]).is_err(), "a file cut to {len} bytes was accepted");
    }
    read(&bytes).unwrap();
}

#[test]
fn huge_counts_are_refused_before_anything_is_allocated() {
    for at in [8, 16] {
        for count in [u64::MAX, 1 << 40, 100_000] {
            let mut bytes = sample().bytes();
            bytes[at..at + 8].copy_from_slice(&count.to_le_bytes());
            let refused = read(&bytes);
            assert!(matches!(refused, Err(GgufError::TooMany { .. })), "{refused:?}");
        }
    }
    let mut array = 8u32.to_le_bytes().to_vec();
    array.extend(u64::MAX.to_le_bytes());
    let refused = open(&Builder::default().entry("x", Value::Raw(9, array)));
    assert!(matches!(refused, Err(GgufError::TooMany { what: "array elements", .. })));
    let string = u64::MAX.to_le_bytes().to_vec();
    let refused = open(&Builder::default().entry("x", Value::Raw(8, string)));
    assert!(matches!(refused, Err(GgufError::TooMany { what: "metadata strings", .. })));
}

#[test]
fn nested_arrays_are_bounded() {
    let nested = |depth: usize| {
        let mut bytes = Vec::new();
        for _ in 1..depth {
            bytes.extend(9u32.to_le_bytes());
            bytes.extend(1u64.to_le_bytes());
        }
        bytes.extend(0u32.to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
        open(&Builder::default().entry("x", Value::Raw(9, bytes)))
    };
    nested(4).unwrap();
    for depth in [5, 100_000] {
        assert!(matches!(nested(depth), Err(GgufError::TooMany { what: "nested arrays", .. })));
    }
}

#[test]
fn names_must_be_unique() {
    let twice = sample().entry("general.architecture", Value::U32(1));
    assert!(matches!(open(&twice), Err(GgufError::Duplicate { what: "metadata key", .. })));
    let twice = sample().tensor("a.weight", &[1], 0, vec![0; 4]);
    assert!(matches!(open(&twice), Err(GgufError::Duplicate { what: "tensor", .. })));
}

#[test]
fn bad_headers_and_alignments_are_refused() {
    assert!(matches!(read(b"GGML\x03\0\0\0"), Err(GgufError::Magic)));
    assert!(matches!(read(b""), Err(GgufError::Magic)));
    assert!(matches!(read(b"GGUF\x01\0\0\0"), Err(GgufError::Version(1))));
    assert!(matches!(read(b"GGUF\0\0\0\x03"), Err(GgufError::BigEndian)));
    for alignment in [0, 3, 48, 1 << 17] {
        let file = open(&Builder::default().entry("general.alignment", Value::U32(alignment)));
        assert!(matches!(file, Err(GgufError::Alignment(_))));
    }
    let file = open(&Builder::default().entry("x", Value::Raw(13, vec![0; 8])));
    assert!(matches!(file, Err(GgufError::ValueType(13))));
}

#[test]
fn impossible_tensors_are_refused() {
    let tensor = |dims: &[u64], id| open(&Builder::default().tensor("t", dims, id, vec![0; 64]));
    assert!(matches!(tensor(&[33], 8), Err(GgufError::TensorShape { .. })));
    assert!(matches!(tensor(&[0], 0), Err(GgufError::TensorShape { .. })));
    assert!(matches!(tensor(&[4, 0], 0), Err(GgufError::TensorShape { .. })));
    assert!(matches!(tensor(&[1 << 40, 1 << 40], 0), Err(GgufError::TensorShape { .. })));
    assert!(matches!(tensor(&[1 << 40], 0), Err(GgufError::TensorRange { .. })));
    assert!(matches!(tensor(&[17], 0), Err(GgufError::TensorRange { .. })));
    assert!(matches!(tensor(&[1; 5], 0), Err(GgufError::TooMany { what: "dimensions", .. })));
    assert!(matches!(tensor(&[], 0), Err(GgufError::TooMany { what: "dimensions", .. })));
    assert!(matches!(tensor(&[16], 4), Err(GgufError::TensorType { id: 4, .. })));
    tensor(&[16], 0).unwrap();
}

#[test]
fn tensor_offsets_must_be_aligned_and_inside() {
    let bytes = sample().bytes();
    let name = bytes.windows(8).position(|window| window == b"a.weight").unwrap();
    let offset_at = name + 8 + 4 + 16 + 4;
    for offset in [1, 16, 1 << 20, u64::MAX, u64::MAX - 31] {
        let mut bytes = bytes.clone();
        bytes[offset_at..offset_at + 8].copy_from_slice(&offset.to_le_bytes());
        assert!(matches!(read(&bytes), Err(GgufError::TensorRange { .. })), "offset {offset}");
    }
}

/// Checks that reading arbitrary `bytes` as a GGUF file does not panic, and that all data of an accepted file can be
/// read.
fn touch_everything(bytes: &[u8]) {
    let Ok(directory) = read(bytes) else { return };
    let meta = Metadata { index: &directory.index, bytes };
    for key in meta.keys() {
        let _ = (meta.str(key), meta.u32(key), meta.f32(key), meta.bool(key));
        let _ = (meta.strings(key), meta.f32s(key), meta.i32s(key));
    }
    for tensor in directory.tensors.values() {
        assert!(bytes.get(tensor.range.clone()).is_some());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn mutated_files_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
        cut_it in any::<bool>(),
    ) {
        let mut bytes = sample().bytes();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if cut_it {
            bytes.truncate(cut.index(bytes.len()));
        }
        touch_everything(&bytes);
    }

    #[test]
    fn mutated_words_never_panic(
        at in any::<prop::sample::Index>(),
        word in prop_oneof![Just(u64::MAX), Just(1 << 63), Just(1 << 32), 0u64..64, any::<u64>()],
    ) {
        let mut bytes = sample().bytes();
        let at = at.index(bytes.len() - 8);
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        touch_everything(&bytes);
    }

    #[test]
    fn random_bytes_never_panic(tail in prop::collection::vec(any::<u8>(), 0..256)) {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(tail);
        touch_everything(&bytes);
    }
}
