//! Tests that statuses of a driver that is newer than this program are told by their numbers. The driver is a library
//! made for the test, which other processes of the test load in place of NVIDIA's.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use std::fs;
use std::process::Command;
use tiercel_gpu::cuda::Context;

/// Opens a GPU in a process of its own, with a driver made of C source text, and returns what the process printed.
fn opened_with(name: &str, source: &str) -> String {
    let folder = std::env::temp_dir().join(format!("tiercel-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (text, library) = (folder.join("driver.c"), folder.join("libcuda.so"));
    fs::write(&text, source).unwrap();
    let options = ["-shared", "-fPIC", "-o"];
    let compiled = Command::new("cc").args(options).arg(&library).arg(&text).status().unwrap();
    assert!(compiled.success(), "the C compiler accepts the driver");
    let process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "in_a_process_with_a_made_up_driver", "--ignored", "--nocapture"])
        .env("LD_LIBRARY_PATH", &folder)
        .output()
        .unwrap();
    fs::remove_dir_all(&folder).unwrap();
    String::from_utf8(process.stdout).unwrap()
}

#[test]
fn a_status_that_no_list_has_is_told_by_its_number() {
    let found = opened_with(
        "unknown",
        "int cuInit(unsigned flags) { return 4242; }
         int cuGetErrorString(int status, const char **text) { *text = 0; return 1; }",
    );
    let expected =
        "the driver could not be started: error 4242, which NVIDIA's driver does not describe";
    assert!(found.contains(expected), "{found}");
}

#[test]
fn a_function_that_the_driver_does_not_have_is_told_by_its_name() {
    let found = opened_with("absent", "int cuInit(unsigned flags) { return 0; }");
    let expected = "NVIDIA's driver has no function cuDriverGetVersion";
    assert!(found.contains(expected), "{found}");
}

#[test]
#[ignore = "needs a substitute driver library: the other tests of this file run this test in a child process with one"]
fn in_a_process_with_a_made_up_driver() {
    println!("{}", Context::open(0).err().unwrap());
}
