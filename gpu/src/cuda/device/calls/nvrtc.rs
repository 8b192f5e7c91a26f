//! Calls of the runtime compiler libnvrtc. The functions have the contracts of NVIDIA's "NVRTC" documentation.

use super::calls;
use cudarc::nvrtc::sys::{nvrtcProgram, nvrtcResult};
use std::ffi::{CString, c_char, c_int};
use std::ptr::{null, null_mut};

/// Error of a call of the runtime compiler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NvrtcError {
    /// Status that the compiler returned, a number of `nvrtcResult` that may be newer than this program.
    Status(u32),
    /// The compiler has no function of this name.
    Absent(&'static str),
}

impl NvrtcError {
    /// Returns a description of the error.
    pub(crate) fn words(self) -> String {
        match self {
            NvrtcError::Absent(name) => {
                format!("libnvrtc has no function {name}; install a newer one")
            }
            NvrtcError::Status(status) if status == nvrtcResult::NVRTC_ERROR_COMPILATION as u32 => {
                "the source is not accepted".to_owned()
            }
            NvrtcError::Status(status) => format!("libnvrtc's status {status} (nvrtcResult)"),
        }
    }
}

calls! {
    cudarc::nvrtc::sys, nvrtcResult, NvrtcError;
    fn nvrtcVersion(major: *mut c_int, minor: *mut c_int);
    fn nvrtcCreateProgram(
        made: *mut nvrtcProgram, source: *const c_char, name: *const c_char, headers: c_int,
        header_texts: *const *const c_char, header_names: *const *const c_char,
    );
    fn nvrtcCompileProgram(program: nvrtcProgram, count: c_int, options: *const *const c_char);
    fn nvrtcGetProgramLogSize(program: nvrtcProgram, bytes: *mut usize);
    fn nvrtcGetProgramLog(program: nvrtcProgram, log: *mut c_char);
    fn nvrtcGetCUBINSize(program: nvrtcProgram, bytes: *mut usize);
    fn nvrtcGetCUBIN(program: nvrtcProgram, code: *mut c_char);
    fn nvrtcDestroyProgram(program: *mut nvrtcProgram);
}

/// Returns the compiler's version (major, minor). The library must be present.
pub(crate) fn version() -> Result<(c_int, c_int), NvrtcError> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the compiler writes two numbers to valid addresses.
    unsafe { raw::nvrtcVersion(&raw mut major, &raw mut minor) }.map(|()| (major, minor))
}

/// A source with the compiler's results for it.
pub(crate) struct Program {
    handle: nvrtcProgram,
    /// Source and name, which live as long as the program, because NVIDIA does not say that the compiler copies them.
    _texts: [CString; 2],
}

impl Program {
    /// Makes a program of a source text with a name. The library must be present.
    pub(crate) fn new(source: &str, name: &str) -> Result<Program, NvrtcError> {
        let text = |text| CString::new(text).expect("sources and names are text without zeros");
        let (source, name) = (text(source), text(name));
        let mut handle = null_mut();
        // SAFETY: both texts end with a zero, and the program keeps them; there are no headers.
        unsafe {
            raw::nvrtcCreateProgram(
                &raw mut handle,
                source.as_ptr(),
                name.as_ptr(),
                0,
                null(),
                null(),
            )
        }?;
        Ok(Program { handle, _texts: [source, name] })
    }

    pub(crate) fn compile(&mut self, options: &[String]) -> Result<(), NvrtcError> {
        let text = |text: &String| CString::new(text.as_str()).expect("options have no zeros");
        let options: Vec<CString> = options.iter().map(text).collect();
        let places: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program exists, and the options are as many texts as the compiler is told, each of which ends
        // with a zero.
        unsafe { raw::nvrtcCompileProgram(self.handle, places.len() as c_int, places.as_ptr()) }
    }

    /// Returns the log of the last compilation; empty if there is none.
    pub(crate) fn log(&self) -> String {
        let mut bytes = 0;
        // SAFETY: the program exists; the compiler writes one number to a valid address.
        let sized = unsafe { raw::nvrtcGetProgramLogSize(self.handle, &raw mut bytes) };
        let mut log = vec![0_u8; if sized.is_ok() { bytes } else { 0 }];
        if log.is_empty() {
            return String::new();
        }
        // SAFETY: the program exists; the compiler writes as many bytes as it just returned, the buffer's size.
        if unsafe { raw::nvrtcGetProgramLog(self.handle, log.as_mut_ptr().cast()) }.is_err() {
            return String::new();
        }
        let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
        String::from_utf8_lossy(&log[..end]).trim().to_owned()
    }

    /// Returns the machine code of a program that was compiled for an architecture such as `sm_90`.
    pub(crate) fn machine_code(&self) -> Result<Vec<u8>, NvrtcError> {
        let mut bytes = 0;
        // SAFETY: the program exists; the compiler writes one number to a valid address.
        unsafe { raw::nvrtcGetCUBINSize(self.handle, &raw mut bytes) }?;
        let mut code = vec![0_u8; bytes];
        // SAFETY: the program exists; the compiler writes as many bytes as it just returned, the buffer's size.
        unsafe { raw::nvrtcGetCUBIN(self.handle, code.as_mut_ptr().cast()) }?;
        Ok(code)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program was made once and is destroyed once.
        let _ = unsafe { raw::nvrtcDestroyProgram(&raw mut self.handle) };
    }
}
