//! Writes small GGUF files for tests.

/// A metadata value to write into a GGUF file.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    U32(u32),
    F32(f32),
    Bool(bool),
    Str(String),
    Strings(Vec<String>),
    F32s(Vec<f32>),
    I32s(Vec<i32>),
    /// Metadata value given as type number and encoded bytes, for rare types that have no variant of their own.
    Raw(u32, Vec<u8>),
}

/// Builder of a GGUF test file: collects its metadata entries and tensors.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    pub(crate) entries: Vec<(String, Value)>,
    /// Name, dimensions, ggml type number and data of each tensor.
    pub(crate) tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
}

impl Builder {
    pub(crate) fn entry(mut self, key: &str, value: Value) -> Builder {
        self.entries.push((key.into(), value));
        self
    }

    pub(crate) fn tensor(mut self, name: &str, dims: &[u64], id: u32, data: Vec<u8>) -> Builder {
        self.tensors.push((name.into(), dims.to_vec(), id, data));
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.entries.len() as u64).to_le_bytes());
        for (key, value) in &self.entries {
            string(&mut out, key);
            write(&mut out, value);
        }
        let mut offset = 0u64;
        for (name, dims, id, data) in &self.tensors {
            string(&mut out, name);
            out.extend((dims.len() as u32).to_le_bytes());
            dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(id.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset = (offset + data.len() as u64).next_multiple_of(32);
        }
        for (.., data) in &self.tensors {
            out.resize(out.len().next_multiple_of(32), 0);
            out.extend(data);
        }
        out
    }

    /// Writes a temporary GGUF file, which is deleted when the returned guard is dropped.
    pub(crate) fn save(&self) -> tempfile::NamedTempFile {
        use std::io::Write;
        let mut file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
        file.write_all(&self.bytes()).unwrap();
        file
    }
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn array_head(out: &mut Vec<u8>, element: u32, len: usize) {
    out.extend(9u32.to_le_bytes());
    out.extend(element.to_le_bytes());
    out.extend((len as u64).to_le_bytes());
}

fn write(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U32(value) => {
            out.extend(4u32.to_le_bytes());
            out.extend(value.to_le_bytes());
        }
        Value::F32(value) => {
            out.extend(6u32.to_le_bytes());
            out.extend(value.to_le_bytes());
        }
        Value::Bool(value) => {
            out.extend(7u32.to_le_bytes());
            out.push(u8::from(*value));
        }
        Value::Str(text) => {
            out.extend(8u32.to_le_bytes());
            string(out, text);
        }
        Value::Strings(texts) => {
            array_head(out, 8, texts.len());
            texts.iter().for_each(|text| string(out, text));
        }
        Value::F32s(values) => {
            array_head(out, 6, values.len());
            values.iter().for_each(|value| out.extend(value.to_le_bytes()));
        }
        Value::I32s(values) => {
            array_head(out, 5, values.len());
            values.iter().for_each(|value| out.extend(value.to_le_bytes()));
        }
        Value::Raw(kind, bytes) => {
            out.extend(kind.to_le_bytes());
            out.extend(bytes);
        }
    }
}
