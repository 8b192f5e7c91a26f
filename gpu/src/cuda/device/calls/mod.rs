//! All calls of NVIDIA's libraries: the CUDA driver, cuBLASLt and the runtime compiler. docs/gpu-calls.md says of each
//! call what this program assumes and where NVIDIA documents it.
//!
//! A status is read as the number that the library returned. cudarc declares the statuses as enums, and a status that
//! only a newer library knows is no value of such an enum, so that reading it would be undefined behaviour. For the
//! types of arguments, cudarc's declarations count, which are made from NVIDIA's headers: a call whose arguments differ
//! from them does not compile.
#![expect(unsafe_code, reason = "calls of C libraries")]

pub(super) mod cublaslt;
pub(super) mod driver;
pub(super) mod nvrtc;
pub(super) mod work;

/// Declares calls of a library that return a status. Each becomes an unsafe function with the library's name for it,
/// which finds the library's function at the first call and returns an error unless the status is 0. `$declared` is
/// cudarc's module with the same functions, `$status` their return type, `$error` the type of errors.
///
/// The library must be present ([`is_culib_present`](cudarc::driver::sys::is_culib_present)) before the first call.
macro_rules! calls {
    (
        $($declared:ident)::+, $status:ident, $error:ident;
        $(fn $name:ident($($argument:ident: $type:ty),* $(,)?);)*
    ) => {
        /// Names of the library's functions that this program calls and that return a status.
        #[cfg(test)]
        pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),*];

        pub(super) mod raw {
            #![expect(non_snake_case, reason = "the functions have the library's names")]
            #![allow(clippy::too_many_arguments, reason = "the functions have the library's arguments")]
            use super::*;
            use $($declared)::+ as declared;
            use std::sync::OnceLock;

            $(
                // SAFETY: the caller keeps the contract of the library's function of this name.
                pub(crate) unsafe fn $name(
                    $($argument: $type),*
                ) -> Result<(), $error> {
                    type Call = unsafe extern "C" fn($($type),*) -> u32;
                    // Compares the arguments with cudarc's declaration. The return type differs: a number here.
                    const _: unsafe fn($($type),*) -> declared::$status = declared::$name;
                    static FOUND: OnceLock<Option<Call>> = OnceLock::new();
                    let found = FOUND.get_or_init(|| {
                        // SAFETY: the library was found before, and its function has the type of cudarc's declaration,
                        // whose return type is an enum of the size and alignment of u32.
                        let call = unsafe {
                            declared::culib().get::<Call>(concat!(stringify!($name), "\0").as_bytes())
                        };
                        call.ok().map(|call| *call)
                    });
                    let Some(call) = found else { return Err($error::Absent(stringify!($name))) };
                    // SAFETY: the caller keeps the contract of the library's function.
                    match unsafe { call($($argument),*) } {
                        0 => Ok(()),
                        status => Err($error::Status(status)),
                    }
                }
            )*
        }
    };
}
use calls;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_names_every_call_and_no_other() {
        let page = include_str!("../../../../../docs/gpu-calls.md");
        let mut told: Vec<&str> = page
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
            .filter(|name| ["cu", "nvrtc"].iter().any(|library| name.starts_with(library)))
            .collect();
        let mut called: Vec<&str> = [driver::NAMES, cublaslt::NAMES, nvrtc::NAMES].concat();
        called.extend(["cuEventElapsedTime", "cuGetErrorString", "cublasLtGetVersion"]);
        told.sort_unstable();
        called.sort_unstable();
        assert_eq!(told, called);
    }
}
