//! Reads the resources of kernels from a cubin, the file that the driver loads: an ELF file with sections of NVIDIA's.
//!
//! NVIDIA does not document these sections. Their numbers are those that `cuobjdump --dump-elf` prints by name: section
//! `.nv.info` has the registers and the stack frame of each kernel, `.nv.info.KERNEL` the launch bounds, and
//! `.nv.shared.KERNEL` the static shared memory.

/// Attribute `EIATTR_REGCOUNT` of `.nv.info`: symbol, registers per thread.
const REGISTERS: u8 = 0x2f;
/// Attribute `EIATTR_FRAME_SIZE` of `.nv.info`: symbol, bytes of the stack frame of a thread.
const FRAME: u8 = 0x11;
/// Attribute `EIATTR_MAX_THREADS` of `.nv.info.KERNEL`: launch bounds in x, y and z.
const MAX_THREADS: u8 = 0x05;
/// Format of an attribute whose value has a size of its own.
const SIZED: u8 = 4;
/// Shared memory that the system reserves in each thread block from Hopper on, bytes; `.nv.shared.KERNEL` includes it.
const RESERVED_SHARED_BYTES: u32 = 1024;

/// Resources of a kernel, as its cubin states them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Kernel {
    /// Registers per thread.
    pub(crate) registers: u32,
    /// Stack frame of a thread, bytes. ptxas puts spilled registers there, and arrays that are indexed at run time.
    pub(crate) stack_bytes: u32,
    /// Most threads of a thread block (launch bound); 1024 without a bound.
    pub(crate) threads_max: u32,
    /// Static shared memory of a thread block, bytes, without that of the system.
    pub(crate) static_shared_bytes: u32,
    /// Alignment of shared memory, bytes.
    pub(crate) shared_alignment: u32,
}

/// A section of an ELF file.
struct Section<'a> {
    name: &'a str,
    info: u32,
    size: u32,
    alignment: u32,
    data: &'a [u8],
}

/// Returns the resources of a kernel of a cubin; `None` if the file has no such kernel or is no cubin.
pub(crate) fn kernel(code: &[u8], name: &str) -> Option<Kernel> {
    let sections = sections(code)?;
    let find = |wanted: &str| sections.iter().find(|section| section.name == wanted);
    let symbol = find(&format!(".text.{name}"))?.info & 0x00ff_ffff;
    let of_all = attributes(find(".nv.info")?.data);
    let of_symbol = |kind| {
        let mut values = of_all.iter().filter(|(found, _)| *found == kind);
        values.find_map(|(_, value)| (word(value, 0)? == symbol).then(|| word(value, 4))?)
    };
    let own = attributes(find(&format!(".nv.info.{name}"))?.data);
    let bound = own.iter().find(|(kind, _)| *kind == MAX_THREADS);
    let threads_max = match bound {
        Some((_, value)) => word(value, 0)? * word(value, 4)? * word(value, 8)?,
        None => 1024,
    };
    let shared = find(&format!(".nv.shared.{name}"));
    let reserved = find(".nv.shared.reserved.0").map_or(0, |_| RESERVED_SHARED_BYTES);
    Some(Kernel {
        registers: of_symbol(REGISTERS)?,
        stack_bytes: of_symbol(FRAME)?,
        threads_max,
        static_shared_bytes: shared.map_or(0, |shared| shared.size.saturating_sub(reserved)),
        shared_alignment: shared.map_or(1, |shared| shared.alignment),
    })
}

/// Returns the attributes of a section `.nv.info`: kind and value. Values without a size of their own have two bytes.
fn attributes(mut data: &[u8]) -> Vec<(u8, &[u8])> {
    let mut all = Vec::new();
    while let [format, kind, low, high, ..] = *data {
        let size = match format {
            SIZED => usize::from(u16::from_le_bytes([low, high])),
            _ => 0,
        };
        let Some(value) = data.get(4..4 + size) else { break };
        all.push((kind, if size > 0 { value } else { &data[2..4] }));
        data = &data[4 + size..];
    }
    all
}

fn sections(code: &[u8]) -> Option<Vec<Section<'_>>> {
    let table = usize::try_from(long(code, 0x28)?).ok()?;
    let (size, count, names) = (half(code, 0x3a)?, half(code, 0x3c)?, half(code, 0x3e)?);
    let header = |number: usize| code.get(table + number * size..table + (number + 1) * size);
    let content = |header: &[u8]| {
        let (start, len) = (long(header, 0x18)? as usize, long(header, 0x20)? as usize);
        // A section of type 8 (NOBITS), as of shared memory, has a size but no content.
        if word(header, 4)? == 8 { Some(&[][..]) } else { code.get(start..start.checked_add(len)?) }
    };
    let names = content(header(names)?)?;
    (0..count)
        .map(|number| {
            let header = header(number)?;
            let name = names.get(word(header, 0)? as usize..)?;
            let end = name.iter().position(|byte| *byte == 0)?;
            Some(Section {
                name: std::str::from_utf8(&name[..end]).ok()?,
                info: word(header, 0x2c)?,
                size: long(header, 0x20)? as u32,
                alignment: long(header, 0x30)? as u32,
                data: content(header)?,
            })
        })
        .collect()
}

fn half(bytes: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?)))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
