//! Priority and processor time of the calling thread.

/// Steps of nice value by which a thread of low priority is below the threads of the device. On a processor that such a thread
/// uses as well, Linux gives the thread of low priority about a tenth of the time.
#[cfg(target_os = "linux")]
const STEPS: i32 = 10;
/// Largest nice value.
#[cfg(target_os = "linux")]
const NICE_MAX: i32 = 19;

/// Priority of one thread of this process. It can only be lowered, and only on Linux, where each thread has a priority: on
/// other systems a priority belongs to the whole process, and the methods do nothing. A system that refuses leaves the
/// thread at its priority, which costs speed only.
#[derive(Debug, Clone, Copy)]
pub struct ThreadPriority {
    #[cfg(target_os = "linux")]
    thread: rustix::thread::Pid,
}

impl ThreadPriority {
    /// Returns the priority of the calling thread.
    pub fn of_this_thread() -> ThreadPriority {
        ThreadPriority {
            #[cfg(target_os = "linux")]
            thread: rustix::thread::gettid(),
        }
    }

    /// Lowers the priority, for work that must not hold up the threads of the device.
    pub fn lower(self) {
        #[cfg(target_os = "linux")]
        self.lower_by(STEPS);
    }

    /// Lowers the priority as far as possible, for work that takes long. The thread must still run.
    pub fn lower_most(self) {
        #[cfg(target_os = "linux")]
        self.lower_by(NICE_MAX);
    }

    #[cfg(target_os = "linux")]
    fn lower_by(self, steps: i32) {
        use rustix::process::{getpriority_process, setpriority_process};
        let thread = Some(self.thread);
        let _ = getpriority_process(thread)
            .and_then(|present| setpriority_process(thread, NICE_MAX.min(present + steps)));
    }
}

/// Returns the processor time that the calling thread has used, us.
pub(crate) fn thread_us() -> u64 {
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
    fn a_priority_is_lowered_for_one_thread_alone() {
        use rustix::process::getpriority_process;
        let own = || getpriority_process(None).expect("a priority");
        let before = own();
        let (told, priority) = std::sync::mpsc::channel();
        let (go, lowered) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let priority = ThreadPriority::of_this_thread();
            priority.lower();
            let low = own();
            told.send(priority).expect("the test lives");
            lowered.recv().expect("the test lives");
            (low, own())
        });
        priority.recv().expect("the thread lives").lower_most();
        go.send(()).expect("the thread lives");
        assert_eq!(thread.join().expect("no panic"), (NICE_MAX.min(before + STEPS), NICE_MAX));
        assert_eq!(own(), before);
    }
}
