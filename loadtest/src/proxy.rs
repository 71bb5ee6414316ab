//! A proxy between two processes: it can be closed, opened, and led elsewhere. What is open at a change is cut.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream, UnixStream},
    sync::watch,
    task::JoinHandle,
};

use crate::Error;

/// Where it leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Upstream {
    Tcp(SocketAddr),
    Unix(PathBuf),
    /// Connections are closed at once.
    Nowhere,
}

/// A running proxy; it ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    leads: watch::Sender<Upstream>,
    task: JoinHandle<()>,
}

// === impl Proxy ===

impl Proxy {
    pub(crate) async fn start(upstream: Upstream) -> Result<Self, Error> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (leads, led) = watch::channel(upstream);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(relay(client, led.clone()));
            }
        });
        Ok(Self { address, leads, task })
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts what is open; new connections lead there.
    pub(crate) fn lead(&self, upstream: Upstream) {
        self.leads.send_replace(upstream);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        // Its connections end too.
        self.leads.send_replace(Upstream::Nowhere);
    }
}

async fn relay(mut client: TcpStream, mut led: watch::Receiver<Upstream>) {
    let upstream = led.borrow_and_update().clone();
    let relayed = async {
        client.set_nodelay(true)?;
        match upstream {
            Upstream::Tcp(address) => {
                let mut server = TcpStream::connect(address).await?;
                server.set_nodelay(true)?;
                copy_bidirectional(&mut client, &mut server).await.map(drop)
            }
            Upstream::Unix(path) => {
                let mut server = UnixStream::connect(path).await?;
                copy_bidirectional(&mut client, &mut server).await.map(drop)
            }
            Upstream::Nowhere => Ok(()),
        }
    };
    tokio::select! {
        _ = led.changed() => {}
        // A broken connection is the business of those at its ends.
        _ = relayed => {}
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn it_passes_until_it_is_closed_and_cuts_what_is_open() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let server = listener.local_addr().expect("an address");
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut reads, mut writes) = stream.split();
                    tokio::io::copy(&mut reads, &mut writes).await
                });
            }
        });
        let proxy = Proxy::start(Upstream::Tcp(server)).await.expect("starts");
        let mut client = TcpStream::connect(proxy.address()).await.expect("connects");
        client.write_all(b"hello").await.expect("writes");
        let mut heard = [0; 5];
        client.read_exact(&mut heard).await.expect("reads");
        assert_eq!(&heard, b"hello");
        proxy.lead(Upstream::Nowhere);
        assert!(matches!(client.read(&mut heard).await, Ok(0) | Err(_)));
        let mut refused = TcpStream::connect(proxy.address()).await.expect("connects");
        assert!(matches!(refused.read(&mut heard).await, Ok(0) | Err(_)));
    }
}
