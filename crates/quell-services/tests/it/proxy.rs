//! The proxy, before a Redis server and spoken to by hand.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use quell_services::Redis;
use quell_services::proxy::{Cut, Proxy, Way};

/// More than anything here takes, unless it is held up.
const PATIENCE: Duration = Duration::from_secs(30);
/// Less than that: for what must not come.
const GLANCE: Duration = Duration::from_millis(200);

fn connected(proxy: &Proxy) -> TcpStream {
    let client = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

/// What comes back, up to `length` bytes or the end of the connection.
fn answer(mut client: &TcpStream, say: &str, length: u64) -> String {
    client.write_all(say.as_bytes()).unwrap();
    let mut response = String::new();
    client.take(length).read_to_string(&mut response).unwrap();
    response
}

#[test]
fn replies_are_counted_and_cut_before_or_after_a_byte() {
    let server = Redis::start(&[]).unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let client = connected(&proxy);
    assert_eq!(answer(&client, "PING\r\n", 7), "+PONG\r\n");

    proxy.set(Some(Cut::After(7)));
    assert_eq!(answer(&client, "PING\r\n", 99), "+PONG\r\n", "it is whole, and the last");
    assert_eq!(proxy.unset(), (b"+PONG\r\n".to_vec(), true));

    proxy.set(Some(Cut::Before(9)));
    let response = answer(&connected(&proxy), "PING\r\nINCR n\r\n", 99);
    assert_eq!(response, "+PONG\r\n:1");
    assert!(proxy.unset().1);
    assert_eq!(server.command(&["GET", "n"]).unwrap(), "1", "the server has done it");

    proxy.set(Some(Cut::Before(7)));
    assert_eq!(answer(&connected(&proxy), "PING\r\n", 7), "+PONG\r\n");
    assert_eq!(proxy.unset(), (b"+PONG\r\n".to_vec(), false), "not a byte more was sent");
}

#[test]
fn who_says_the_words_is_let_through() {
    let server = Redis::start(&[]).unwrap();
    let proxy = Proxy::sparing(server.port(), b"hints").unwrap();
    proxy.set(Some(Cut::Before(0)));
    let client = connected(&proxy);
    assert_eq!(answer(&client, "CLIENT SETNAME hints\r\nPING\r\n", 12), "+OK\r\n+PONG\r\n");
    proxy.hold(true);
    assert_eq!(answer(&client, "PING\r\n", 7), "+PONG\r\n");
    proxy.hold(false);
    assert_eq!(answer(&connected(&proxy), "PING\r\n", 99), "");
}

#[test]
fn what_is_held_comes_later_and_what_is_delayed_takes_so_long() {
    let server = Redis::start(&[]).unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let client = connected(&proxy);
    proxy.hold(true);
    client.set_read_timeout(Some(GLANCE)).unwrap();
    (&client).write_all(b"PING\r\n").unwrap();
    let nothing = (&client).read(&mut [0; 1]).unwrap_err().kind();
    assert!(matches!(nothing, ErrorKind::WouldBlock | ErrorKind::TimedOut), "{nothing:?}");
    proxy.hold(false);
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(answer(&client, "", 7), "+PONG\r\n");

    proxy.delay(GLANCE);
    let began = Instant::now();
    assert_eq!(answer(&client, "PING\r\n", 7), "+PONG\r\n");
    assert!(began.elapsed() >= GLANCE);
}

#[test]
fn a_reset_is_a_reset_and_new_connections_are_served() {
    let mut server = Redis::start(&[]).unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let client = connected(&proxy);
    assert_eq!(answer(&client, "PING\r\n", 7), "+PONG\r\n");
    assert_eq!(proxy.reset(), 1);
    let response = (&client).read(&mut [0; 1]).unwrap_err().kind();
    assert_eq!(response, ErrorKind::ConnectionReset);
    assert_eq!(answer(&connected(&proxy), "PING\r\n", 7), "+PONG\r\n");

    let client = connected(&proxy);
    assert_eq!(answer(&client, "PING\r\n", 7), "+PONG\r\n");
    server.kill().unwrap();
    assert_eq!((&client).read(&mut [0; 1]).unwrap(), 0, "it ends with the server's side");
    server.resume().unwrap();
    assert_eq!(answer(&connected(&proxy), "PING\r\n", 7), "+PONG\r\n");
    let client = connected(&proxy);
    drop(proxy);
    assert_eq!((&client).read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn a_client_of_a_connection_that_the_server_gave_up_hears_nothing() {
    let server = Redis::start(&[]).unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    for way in [Way::Up, Way::Down, Way::Both] {
        let client = connected(&proxy);
        assert_eq!(answer(&client, "PING\r\n", 7), "+PONG\r\n");
        assert!(proxy.silence(way) > 0);
        assert!(proxy.abandon() > 0);
        proxy.heal();
        client.set_read_timeout(Some(GLANCE)).unwrap();
        (&client).write_all(b"PING\r\n").unwrap();
        let received = (&client).read(&mut [0; 9]).map_err(|error| error.kind());
        assert!(
            matches!(received, Err(ErrorKind::WouldBlock | ErrorKind::TimedOut)),
            "{way:?}: {received:?}"
        );
        assert_eq!(answer(&connected(&proxy), "PING\r\n", 7), "+PONG\r\n", "a new one works");
    }
}
