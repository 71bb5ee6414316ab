//! Clients that connect and say nothing, or next to nothing, at a port with TLS.

use std::time::Duration;

use budget_tests::{certificates::Valid, daemon::Daemon, eventually::eventually};
use futures::{StreamExt, stream};
use tokio::{io::AsyncReadExt, io::AsyncWriteExt, net::TcpStream, time::timeout};

use super::ground::{BOUND, Files, ask};

/// The first bytes of a TLS record that never comes to its end.
const BEGINNING: &[u8] = &[0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03];

/// Far less than the silent ones' handshakes take one after the other, 5 s each.
const HEARD: Duration = Duration::from_secs(20);

async fn silent(daemon: &Daemon, count: usize) -> Vec<TcpStream> {
    let connecting = stream::iter(0..count).map(|_| TcpStream::connect(daemon.grpc()));
    connecting.buffered(64).map(Result::unwrap).collect().await
}

/// Whether the daemon has hung up.
async fn is_cut(stream: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    timeout(BOUND, stream.read_to_end(&mut rest)).await.is_ok()
}

/// Seen to fail with handshakes on the accept path.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_28_silent_connections_hold_nobody_up() {
    let files = Files::new();
    files.write_pair("client", &files.authority.client(&["a.example"], Valid::Now));
    let daemon = files.daemon(&["ca"]);
    let good = files.certified("client");
    for count in [1, 1_000] {
        let mut held = silent(&daemon, count).await;
        // Some say a byte now and then.
        let half = held.len() / 2;
        for (at, byte) in BEGINNING.iter().enumerate() {
            for stream in &mut held[half..] {
                // Those that were cut by now cannot be written to.
                let _cut = stream.write_all(&[*byte]).await;
            }
            let asked = timeout(HEARD, ask(&daemon, &good, "pay")).await;
            asked.unwrap_or_else(|_| panic!("{count} silent ones hold up ask {at}")).unwrap();
        }
        for stream in &mut held {
            assert!(is_cut(stream).await, "of {count} one stays");
        }
    }
}

/// More than all connections that there may be: the oldest of the silent ones give way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_28_silent_connections_do_not_use_up_the_connections() {
    let files = Files::new();
    let flags = files.flags(&[]);
    let flags: Vec<&str> =
        flags.iter().map(String::as_str).chain(["--max-connections", "100", "--no-leases-out"]).collect();
    let daemon = Daemon::start_with(&flags, &[]);
    let held = silent(&daemon, 400).await;
    ask(&daemon, &files.credentials(), "pay").await.unwrap();
    // What is no TLS at all ends at once and is nobody's loss.
    for garbage in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[0xff; 64], &[0x16, 3, 1, 0xff, 0xff]]
    {
        let mut stream = TcpStream::connect(daemon.grpc()).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        assert!(is_cut(&mut stream).await);
        ask(&daemon, &files.credentials(), "pay").await.unwrap();
    }
    drop(held);
    eventually(BOUND, "asked again", async || ask(&daemon, &files.credentials(), "pay").await.is_ok()).await;
}
