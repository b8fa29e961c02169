//! A Redis server: what it keeps, how it is hurt, and that it ends.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use quell_services::Redis;

#[test]
fn a_server_is_ready_once_it_is_started_and_ends_with_its_value() {
    let server = Redis::start(&[]).unwrap();
    assert_eq!(server.url(), format!("redis://127.0.0.1:{}/", server.port()));
    assert_eq!(server.command(&["SET", "a", "1"]).unwrap(), "OK");
    assert_eq!(server.command(&["GET", "a"]).unwrap(), "1");
    let (port, folder) = (server.port(), server.folder().to_owned());
    drop(server);
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "it still listens");
    assert!(!folder.exists());
}

#[test]
fn what_is_on_disk_survives_a_kill_and_a_stop_and_nothing_else_does() {
    for (settings, kept) in [(&["appendonly yes", "appendfsync always"][..], "1"), (&[], "")] {
        let mut server = Redis::start(settings).unwrap();
        let port = server.port();
        server.command(&["SET", "killed", "1"]).unwrap();
        server.kill().unwrap();
        assert!(server.command(&["PING"]).is_err());
        let log = std::fs::read_to_string(server.folder().join("log")).unwrap();
        assert!(!log.contains("shutdown"), "it had time to put things in order: {log}");
        server.resume().unwrap();
        assert_eq!(server.command(&["GET", "killed"]).unwrap(), kept, "{settings:?}");
        server.command(&["SET", "stopped", "1"]).unwrap();
        server.stop().unwrap();
        server.resume().unwrap();
        assert_eq!(server.command(&["GET", "stopped"]).unwrap(), kept, "{settings:?}");
        assert_eq!(server.port(), port);
    }
}

#[test]
fn a_paused_server_takes_connections_and_answers_once_it_goes_on() {
    let mut server = Redis::start(&[]).unwrap();
    server.pause().unwrap();
    let mut client = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    client.write_all(b"PING\r\n").unwrap();
    let mut answer = [0; 7];
    let nothing = client.read(&mut answer).unwrap_err().kind();
    assert!(matches!(nothing, ErrorKind::WouldBlock | ErrorKind::TimedOut), "{nothing:?}");
    assert!(server.command(&["PING"]).is_err(), "it must not be waited for");
    server.go_on().unwrap();
    client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+PONG\r\n");
    server.pause().unwrap();
    server.stop().unwrap();
    server.resume().unwrap();
    assert_eq!(server.command(&["PING"]).unwrap(), "PONG");
}

#[test]
fn settings_are_lines_of_its_configuration_and_errors_are_errors() {
    let secret = "requirepass a secret".replace("a ", "");
    let lines = ["maxmemory 8mb", "maxmemory-policy allkeys-lru", &secret];
    let server = Redis::start(&lines).unwrap();
    assert_eq!(server.url(), format!("redis://:secret@{}/", server.address()));
    let policy = server.command(&["CONFIG", "GET", "maxmemory-policy"]).unwrap();
    assert_eq!(policy, "maxmemory-policy\nallkeys-lru");
    let refused = server.command(&["NOSUCH"]).unwrap_err().to_string();
    assert!(refused.contains("unknown command"), "{refused}");
    let refused = Redis::start(&["no-such-setting yes"]).unwrap_err().to_string();
    assert!(refused.contains("no-such-setting"), "{refused}");
}
