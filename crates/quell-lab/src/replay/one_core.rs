//! Keeps a replay in virtual time on one processor core.
//!
//! Such a replay is a chain of short calls: the runtime and the connection's thread take turns. On
//! two cores, each turn wakes a sleeping core, which takes longer than most statements; on one core
//! it is a switch between two threads. Invariant: a dropped guard restores the thread's cores.

#[cfg(target_os = "linux")]
mod pinned {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

    /// Keeps the calling thread, and all threads that it starts, on one core until it is dropped.
    ///
    /// Pin before the store is opened: its threads must share the core.
    ///
    /// ```
    /// use quell_lab::replay::OneCore;
    ///
    /// let one_core = OneCore::pin();
    /// // Start a runtime, open a store, replay a trace.
    /// drop(one_core);
    /// ```
    #[derive(Debug)]
    pub struct OneCore {
        before: Option<CpuSet>,
    }

    impl OneCore {
        /// Pins the calling thread. Where the system refuses, only the speed differs.
        #[must_use]
        pub fn pin() -> OneCore {
            // It also fails where there are more cores than a set holds.
            let before = sched_getaffinity(None).ok().filter(|_| sched_getcpu() < CpuSet::MAX_CPU);
            let Some(before) = before else { return OneCore { before: None } };
            let mut one = CpuSet::new();
            one.set(sched_getcpu());
            let is_pinned = sched_setaffinity(None, &one).is_ok();
            OneCore { before: is_pinned.then_some(before) }
        }
    }

    impl Drop for OneCore {
        fn drop(&mut self) {
            if let Some(before) = &self.before {
                // The cores were allowed before; a thread that stays on one is only slower.
                let _slower = sched_setaffinity(None, before);
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_thread_that_starts_meanwhile_shares_the_core_and_all_are_back_afterwards() {
            let cores = || sched_getaffinity(None).unwrap();
            let before = cores();
            let pinned = OneCore::pin();
            let inherited = std::thread::spawn(cores).join().unwrap();
            assert_eq!((cores().count(), inherited), (1, cores()));
            drop(pinned);
            assert_eq!(cores(), before);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod pinned {
    /// Elsewhere, the system chooses.
    #[derive(Debug)]
    pub struct OneCore;

    impl OneCore {
        /// Pins nothing.
        #[must_use]
        pub fn pin() -> OneCore {
            OneCore
        }
    }
}

pub use pinned::OneCore;
