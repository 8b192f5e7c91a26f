//! Metadata of a GGUF file: typed values by key. The values stay in the mapped file; an index entry records only their
//! type and byte range.

use super::{GgufError, cursor::Cursor};
use std::collections::HashMap;
use std::ops::Range;

const KEYS_MAX: u64 = 16_384;
const KEY_BYTES_MAX: u64 = 65_535;
const STRING_BYTES_MAX: u64 = 64 << 20;
const ARRAY_LEN_MAX: u64 = 64 << 20;
const ARRAY_DEPTH_MAX: u32 = 4;
/// Minimum bytes of a GGUF metadata entry: key length (8), value type (4) and a one-byte value (1).
const ENTRY_BYTES_MIN: usize = 13;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    fn from_id(id: u32) -> Result<ValueType, GgufError> {
        use ValueType::*;
        const ALL: [ValueType; 13] =
            [U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64];
        ALL.get(id as usize).copied().ok_or(GgufError::ValueType(id))
    }

    fn name(self) -> &'static str {
        use ValueType::*;
        match self {
            U8 | I8 | U16 | I16 | U32 | I32 | U64 | I64 => "an integer",
            F32 | F64 => "a float",
            Bool => "a boolean",
            String => "a string",
            Array => "an array",
        }
    }

    /// Returns the size of a metadata value of the type, bytes; `None` for strings and arrays, which have no fixed
    /// size.
    fn bytes(self) -> Option<usize> {
        use ValueType::*;
        match self {
            U8 | I8 | Bool => Some(1),
            U16 | I16 => Some(2),
            U32 | I32 | F32 => Some(4),
            U64 | I64 | F64 => Some(8),
            String | Array => None,
        }
    }
}

#[derive(Debug, Clone)]
struct Entry {
    kind: ValueType,
    /// Element type and number of elements if the metadata value is an array; `None` for any other value.
    elements: Option<(ValueType, usize)>,
    /// Byte range of a metadata value in the file, without the length of a string or array and without an array's
    /// element type.
    range: Range<usize>,
}

/// Index of a GGUF file's metadata: type and byte range of each entry, by key.
#[derive(Debug, Default)]
pub(super) struct Index {
    entries: HashMap<String, Entry>,
}

impl Index {
    pub(super) fn read_count(cursor: &mut Cursor<'_>) -> Result<usize, GgufError> {
        cursor.count("metadata entries", ENTRY_BYTES_MIN, KEYS_MAX)
    }

    pub(super) fn read(cursor: &mut Cursor<'_>, count: usize) -> Result<Index, GgufError> {
        let mut entries = HashMap::new();
        for _ in 0..count {
            let key = cursor.owned("metadata keys", KEY_BYTES_MAX)?;
            let kind = ValueType::from_id(cursor.u32("a metadata value")?)?;
            let entry = read_value(cursor, kind)?;
            if entries.insert(key.clone(), entry).is_some() {
                return Err(GgufError::Duplicate { what: "metadata key", name: key });
            }
        }
        Ok(Index { entries })
    }
}

fn read_value(cursor: &mut Cursor<'_>, kind: ValueType) -> Result<Entry, GgufError> {
    let what = "a metadata value";
    match kind {
        ValueType::String => {
            let range = cursor.string("metadata strings", STRING_BYTES_MAX)?;
            Ok(Entry { kind, elements: None, range })
        }
        ValueType::Array => read_array(cursor, 1),
        fixed => {
            let bytes = fixed.bytes().expect("strings and arrays are handled above");
            Ok(Entry { kind, elements: None, range: cursor.skip(bytes as u64, what)? })
        }
    }
}

fn read_array(cursor: &mut Cursor<'_>, depth: u32) -> Result<Entry, GgufError> {
    if depth > ARRAY_DEPTH_MAX {
        let limit = u64::from(ARRAY_DEPTH_MAX);
        return Err(GgufError::TooMany { what: "nested arrays", count: u64::from(depth), limit });
    }
    let element = ValueType::from_id(cursor.u32("an array")?)?;
    let element_bytes_min = match element {
        ValueType::String => 8,
        ValueType::Array => 12,
        fixed => fixed.bytes().expect("strings and arrays are handled above"),
    };
    let len = cursor.count("array elements", element_bytes_min, ARRAY_LEN_MAX)?;
    let start = cursor.pos();
    match element {
        ValueType::String => {
            for _ in 0..len {
                cursor.string("metadata strings", STRING_BYTES_MAX)?;
            }
        }
        ValueType::Array => {
            for _ in 0..len {
                read_array(cursor, depth + 1)?;
            }
        }
        _ => {
            cursor.skip((len * element_bytes_min) as u64, "an array")?;
        }
    }
    let elements = Some((element, len));
    Ok(Entry { kind: ValueType::Array, elements, range: start..cursor.pos() })
}

/// Typed access to the metadata of an open GGUF file. A getter returns `Ok(None)` if the key is absent, and an error if
/// the value has another type. Integers of any width are accepted if the value fits.
#[derive(Debug, Clone, Copy)]
pub struct Metadata<'a> {
    pub(super) index: &'a Index,
    pub(super) bytes: &'a [u8],
}

impl<'a> Metadata<'a> {
    /// Returns whether the GGUF metadata has an entry with the key.
    pub fn has(&self, key: &str) -> bool {
        self.index.entries.contains_key(key)
    }

    /// Returns all keys of the GGUF metadata, in no particular order.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.index.entries.keys().map(String::as_str)
    }

    /// Returns the value that the getter `get` finds for `key`, or an error that names the missing key.
    ///
    /// # Errors
    /// [`GgufError::MissingKey`], or the error of the getter.
    pub fn required<T>(
        &self,
        key: &str,
        get: impl FnOnce(&Self, &str) -> Result<Option<T>, GgufError>,
    ) -> Result<T, GgufError> {
        get(self, key)?.ok_or_else(|| GgufError::MissingKey(key.to_owned()))
    }

    /// Returns the string that the metadata has at `key`; `None` if the key is absent.
    ///
    /// # Errors
    /// [`GgufError::WrongType`].
    pub fn str(&self, key: &str) -> Result<Option<&'a str>, GgufError> {
        let Some(entry) = self.index.entries.get(key) else { return Ok(None) };
        if entry.kind != ValueType::String {
            return Err(wrong(key, "a string", entry.kind.name()));
        }
        let text = std::str::from_utf8(&self.bytes[entry.range.clone()]);
        text.map(Some).map_err(|_| GgufError::Utf8 { what: "metadata strings" })
    }

    /// Returns the integer that the metadata has at `key`, which must be unsigned and fit 32 bits; `None` if the key is
    /// absent.
    ///
    /// # Errors
    /// [`GgufError::WrongType`].
    pub fn u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        let Some(entry) = self.index.entries.get(key) else { return Ok(None) };
        let value = integer(entry.kind, &self.bytes[entry.range.clone()]);
        match value.and_then(|value| u32::try_from(value).ok()) {
            Some(value) => Ok(Some(value)),
            None => Err(wrong(key, "an integer from 0 to 4294967295", entry.kind.name())),
        }
    }

    /// Returns the number that the metadata has at `key` as a float; integers are converted, `None` if the key is
    /// absent.
    ///
    /// # Errors
    /// [`GgufError::WrongType`].
    pub fn f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        let Some(entry) = self.index.entries.get(key) else { return Ok(None) };
        let bytes = &self.bytes[entry.range.clone()];
        let value = float(entry.kind, bytes)
            .or_else(|| integer(entry.kind, bytes).map(|value| value as f32));
        value.map(Some).ok_or_else(|| wrong(key, "a number", entry.kind.name()))
    }

    /// Returns the boolean that the metadata has at `key`; `None` if the key is absent.
    ///
    /// # Errors
    /// [`GgufError::WrongType`].
    pub fn bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        let Some(entry) = self.index.entries.get(key) else { return Ok(None) };
        if entry.kind != ValueType::Bool {
            return Err(wrong(key, "a boolean", entry.kind.name()));
        }
        Ok(Some(self.bytes[entry.range.start] != 0))
    }

    /// Returns the array of strings that the metadata has at `key`; `None` if the key is absent.
    ///
    /// # Errors
    /// [`GgufError::WrongType`].
    pub fn strings(&self, key: &str) -> Result<Option<Vec<&'a str>>, GgufError> {
        let Some((element, len, range)) = self.array(key, "an array of strings")? else {
            return Ok(None);
        };
        if element != ValueType::String {
            return Err(wrong(key, "an array of strings", "an array of something else"));
        }
        let bytes = self.bytes;
        let mut cursor = Cursor::new(&bytes[range.clone()]);
        let mut strings = Vec::with_capacity(len);
        for _ in 0..len {
            let at = cursor.string("metadata strings", STRING_BYTES_MAX)?;
            let text = &bytes[range.start + at.start..range.start + at.end];
            let text = std::str::from_utf8(text);
            strings.push(text.map_err(|_| GgufError::Utf8 { what: "metadata strings" })?);
        }
        Ok(Some(strings))
    }

    /// Returns the array of floats that the metadata has at `key`; `None` if the key is absent.
    ///
    /// # Errors
    /// [`GgufError::WrongType`].
    pub fn f32s(&self, key: &str) -> Result<Option<Vec<f32>>, GgufError> {
        self.numbers(key, "an array of floats", float)
    }

    /// Returns the array of integers that the metadata has at `key`, each of which must fit 32 bits; `None` if the key
    /// is absent.
    ///
    /// # Errors
    /// [`GgufError::WrongType`].
    pub fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>, GgufError> {
        self.numbers(key, "an array of 32-bit integers", |kind, bytes| {
            i32::try_from(integer(kind, bytes)?).ok()
        })
    }

    fn numbers<T>(
        &self,
        key: &str,
        wanted: &'static str,
        convert: impl Fn(ValueType, &[u8]) -> Option<T>,
    ) -> Result<Option<Vec<T>>, GgufError> {
        let Some((element, _, range)) = self.array(key, wanted)? else { return Ok(None) };
        let other = || wrong(key, wanted, "an array of something else");
        let size = element.bytes().ok_or_else(other)?;
        let values = self.bytes[range].chunks_exact(size).map(|bytes| convert(element, bytes));
        values.collect::<Option<Vec<T>>>().map(Some).ok_or_else(other)
    }

    fn array(
        &self,
        key: &str,
        wanted: &'static str,
    ) -> Result<Option<(ValueType, usize, Range<usize>)>, GgufError> {
        let Some(entry) = self.index.entries.get(key) else { return Ok(None) };
        let Some((element, len)) = entry.elements else {
            return Err(wrong(key, wanted, entry.kind.name()));
        };
        Ok(Some((element, len, entry.range.clone())))
    }
}

fn wrong(key: &str, wanted: &'static str, found: &'static str) -> GgufError {
    GgufError::WrongType { key: key.to_owned(), wanted, found }
}

fn integer(kind: ValueType, bytes: &[u8]) -> Option<i128> {
    Some(match kind {
        ValueType::U8 => i128::from(bytes[0]),
        ValueType::I8 => i128::from(bytes[0] as i8),
        ValueType::U16 => i128::from(u16::from_le_bytes(bytes.try_into().ok()?)),
        ValueType::I16 => i128::from(i16::from_le_bytes(bytes.try_into().ok()?)),
        ValueType::U32 => i128::from(u32::from_le_bytes(bytes.try_into().ok()?)),
        ValueType::I32 => i128::from(i32::from_le_bytes(bytes.try_into().ok()?)),
        ValueType::U64 => i128::from(u64::from_le_bytes(bytes.try_into().ok()?)),
        ValueType::I64 => i128::from(i64::from_le_bytes(bytes.try_into().ok()?)),
        _ => return None,
    })
}

fn float(kind: ValueType, bytes: &[u8]) -> Option<f32> {
    match kind {
        ValueType::F32 => Some(f32::from_le_bytes(bytes.try_into().ok()?)),
        ValueType::F64 => Some(f64::from_le_bytes(bytes.try_into().ok()?) as f32),
        _ => None,
    }
}
