//! Keeps a replay in virtual time on one processor core.
//!
//! Such a replay is a chain of short calls: the runtime and the connection's thread take turns, and
//! never work at the same time. On two cores, each turn wakes a core that has fallen asleep, which
//! takes longer than most statements do; on one core it is a switch between two threads.
//! Invariant: the calling thread may use the cores from before again when the guard is dropped.

#[cfg(target_os = "linux")]
mod pinned {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

    /// Keeps the calling thread, and all threads that it starts, on one core until it is dropped.
    #[derive(Debug)]
    pub(in super::super) struct OneCore {
        before: Option<CpuSet>,
    }

    impl OneCore {
        /// Where the system refuses, nothing changes but the speed.
        pub(in super::super) fn pin() -> OneCore {
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
    pub(in super::super) struct OneCore;

    impl OneCore {
        pub(in super::super) fn pin() -> OneCore {
            OneCore
        }
    }
}

pub(super) use pinned::OneCore;
