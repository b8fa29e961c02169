//! Microsoft's SDKs as referees: what they accept on the wire is what Azure Service Bus says there.

use std::process::Command;
use std::time::Duration;

use quell_services::ServiceBus;
use quell_services::servicebus::{Counts, Fault, QueueOptions, node_sdk, python_sdk};

const MANY: u32 = 1_000;

/// Runs a script that exercises every operation, with the queues and faults that it expects.
fn referee(mut command: Command, script: &str) {
    let bus = ServiceBus::start().unwrap();
    let options = QueueOptions::default();
    for (queue, options) in [
        ("plain", options),
        ("short", QueueOptions { lock: Duration::from_secs(2), ..options }),
        ("strict", QueueOptions { max_deliveries: 2, ..options }),
        ("unique", QueueOptions { duplicate_window: Some(Duration::from_secs(60)), ..options }),
        ("brief", QueueOptions { time_to_live: Some(Duration::from_millis(300)), ..options }),
        ("busy", options),
        ("lossy", options),
        ("twice", options),
    ] {
        bus.create_queue(queue, options).unwrap();
    }
    bus.fault("busy", Fault::Busy, MANY).unwrap();
    bus.fault("lossy", Fault::DropAfter, 1).unwrap();
    bus.fault("twice", Fault::Twice, 1).unwrap();
    let script = format!("{}/servicebus/{script}", env!("CARGO_MANIFEST_DIR"));
    command.arg(script).env("SERVICEBUS", bus.connection_string());
    let output = command.output().unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    assert!(out.ends_with("all ok\n"), "the script ended early: {out}\n{err}");
    // Whatever was completed is gone, on every queue.
    for queue in ["plain", "short", "strict", "unique", "brief", "busy", "lossy", "twice"] {
        assert_eq!(bus.counts(queue).unwrap(), Counts::default(), "{queue}: {out}\n{err}");
    }
}

#[test]
fn the_sdk_for_python_finds_a_service_bus() {
    referee(python_sdk().unwrap(), "referee.py");
}

#[test]
fn the_sdk_for_javascript_finds_a_service_bus() {
    referee(node_sdk().unwrap(), "referee.js");
}

#[test]
fn a_stand_in_ends_with_its_value() {
    let bus = ServiceBus::start().unwrap();
    let port = bus.port();
    std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    drop(bus);
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[test]
fn an_unknown_control_is_refused() {
    let bus = ServiceBus::start().unwrap();
    let error = bus.counts("missing").unwrap_err();
    assert!(error.to_string().contains("could not be found"), "{error}");
}
