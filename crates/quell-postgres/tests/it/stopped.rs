//! A process that is stopped in the middle of any call (R39): whatever it holds at that moment, others
//! trigger and start jobs.

use std::time::{Duration, Instant};

use quell_conformance::Rig;
use quell_conformance::calls::{Case, table};
use quell_conformance::effort::some_of;
use quell_conformance::rig::{keyed, plain, until};
use quell_core::{Batch, Claim, NewTrigger, QueueName, Store};

use crate::cuts::{FIRST, Ground, SHARES};
use crate::proxy::{Cut, cuts_of};

/// The usual run makes one in this number of a call's stops, and the last ones; a long run makes all.
const TRIED: (u64, usize) = (12, 2);
/// Others must go on within this time, no matter which process is stopped.
const GOES_ON: Duration = Duration::from_secs(15);

/// Triggers in another queue, with a key that no other caller uses, and starts the resulting jobs.
async fn goes_on(ground: &Ground, name: &str, at: usize) -> Duration {
    let (stopped, now) = (Instant::now(), Some(ground.base));
    let queue = QueueName::new("other").unwrap();
    let calls = async {
        for trigger in [plain("1"), keyed("its own")] {
            let trigger = NewTrigger { queue: queue.clone(), ..trigger };
            // One that waited too long for what is held may be refused, and is tried again.
            while ground.direct.enqueue(now, vec![Batch::one(trigger.clone())]).await.is_err() {}
        }
        let asked = Claim { queue: queue.clone(), ..Rig::claim_of(1) };
        loop {
            match ground.direct.claim(now, &asked).await {
                Ok(claimed) if !claimed.jobs.is_empty() => return,
                // The next look comes when the store says, or sooner.
                Ok(_) | Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    let done = tokio::time::timeout(GOES_ON, calls).await;
    assert!(done.is_ok(), "{name}, stopped after {at} bytes: others do not go on");
    stopped.elapsed()
}

/// Stops each of these calls wherever the process may speak; returns how often, and how long others
/// waited at the longest.
async fn stop_all(cases: Vec<Case>) -> (usize, Duration) {
    let mut ground = Ground::new(None).await;
    let (mut rounds, mut longest) = (0, Duration::ZERO);
    for (number, case) in cases.into_iter().enumerate() {
        ground.whole(&case).await;
        let (_, _, replies) = ground.whole(&case).await;
        let stops = |cut: &Cut| match cut {
            // At the end of the replies the call is over.
            Cut::After(at) => *at < replies.len(),
            _ => false,
        };
        let cuts = cuts_of(&replies).into_iter().filter(stops).collect();
        for cut in some_of(cuts, number, TRIED) {
            let Cut::After(at) = cut else { continue };
            ground.begin(&case).await;
            ground.connect(&case).await;
            ground.proxy.set(Some(Cut::Silent(at)));
            let stops = async {
                drop((case.call)(&ground.cut_off, ground.base, FIRST).await);
                std::future::pending::<()>().await;
            };
            let others = async {
                until("the call is stopped", async || ground.proxy.was_cut()).await;
                goes_on(&ground, case.name, at).await
            };
            let waited = tokio::select! {
                () = stops => unreachable!("it is pending"),
                waited = others => waited,
            };
            longest = longest.max(waited);
            rounds += 1;
            ground.proxy.close_all();
            ground.proxy.unset();
        }
    }
    (rounds, longest)
}

#[test]
fn r39_a_process_stopped_at_any_statement_of_any_call_keeps_nobody_from_starting_jobs() {
    let mut shares: [Vec<Case>; SHARES] = Default::default();
    for (index, case) in table().into_iter().filter(|case| !case.stranger).enumerate() {
        shares[index % SHARES].push(case);
    }
    let stopping = shares.map(|share| {
        std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(stop_all(share))
        })
    });
    let (mut rounds, mut longest) = (0, Duration::ZERO);
    for done in stopping {
        let (stops, waited) = done.join().unwrap();
        rounds += stops;
        longest = longest.max(waited);
    }
    eprintln!("{rounds} stops, others waited {longest:?} at the longest");
    assert!(rounds > 100, "{rounds} stops");
}
