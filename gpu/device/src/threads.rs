//! Priority and processor time of the calling thread.

/// Steps of nice value by which a thread of low priority is below the threads of the device. On a processor that such a
/// thread uses as well, Linux gives the thread of low priority about a tenth of the time.
#[cfg(target_os = "linux")]
const STEPS: i32 = 10;
/// Largest nice value.
#[cfg(target_os = "linux")]
const NICE_MAX: i32 = 19;

/// Lowers the priority of the calling thread, for work that must not hold up the threads of the device. Threads that
/// the calling thread starts later have the low priority too. On systems other than Linux a priority belongs to the
/// whole process, and the function does nothing. A system that refuses leaves the thread at its priority, which costs
/// speed only.
pub fn lower_thread_priority() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{getpriority_process, setpriority_process};
        let _ = getpriority_process(None)
            .and_then(|present| setpriority_process(None, NICE_MAX.min(present + STEPS)));
    }
}

/// Returns the processor time that the calling thread has used, us.
pub fn thread_us() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_works_uses_processor_time() {
        let before_us = thread_us();
        let mut sum = 0u64;
        while thread_us() < before_us + 2_000 {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(sum > 0);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_priority_is_lowered_for_the_calling_thread_alone() {
        let own = || rustix::process::getpriority_process(None).expect("a priority");
        let before = own();
        let lowered = std::thread::spawn(move || {
            lower_thread_priority();
            own()
        });
        assert_eq!(lowered.join().expect("no panic"), NICE_MAX.min(before + STEPS));
        assert_eq!(own(), before);
    }
}
