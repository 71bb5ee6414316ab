//! The bytes of one connection: plain, or by TLS once the handshake is done.
//!
//! A handshake goes on when its own connection is polled, in that connection's task; nobody else waits for it.

use std::{
    fmt, io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::{Accept, server::TlsStream};

use crate::security::{Peer, Port, Tls, certify};

/// One of the ways in which bytes come.
pub(super) enum Io {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// None after the handshake has failed.
    Handshake(Option<Box<Accept<TcpStream>>>),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Does the same with whichever there is; what is not there yet is waited for before.
macro_rules! whichever {
    ($io:expr, $stream:ident => $does:expr) => {
        match $io {
            Io::Tcp($stream) => $does,
            Io::Unix($stream) => $does,
            Io::Tls($stream) => $does,
            Io::Handshake(_) => Poll::Ready(Err(failed())),
        }
    };
}

fn failed() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the TLS handshake has failed")
}

// === impl Io ===

impl Io {
    /// Demands TLS of a connection from elsewhere. A unix socket is guarded by the rights on its file.
    pub(super) fn secured(self, tls: Option<&(Tls, Port)>) -> Self {
        match (self, tls) {
            (Self::Tcp(stream), Some((tls, port))) => Self::Handshake(Some(Box::new(tls.accept(*port, stream)))),
            (io, _) => io,
        }
    }

    pub(super) fn peer(&self) -> Peer {
        match self {
            Self::Tcp(stream) => match stream.peer_addr() {
                Ok(address) => Peer::at(Some(address)),
                // It is gone already; certainly it is not from here.
                Err(_) => Peer::at(Some(([0, 0, 0, 0], 0).into())),
            },
            Self::Unix(_) | Self::Handshake(_) | Self::Tls(_) => Peer::at(None),
        }
    }

    pub(super) const fn is_ready(&self) -> bool {
        !matches!(self, Self::Handshake(_))
    }

    /// Goes on with the handshake, if it is not done.
    pub(super) fn poll_ready(&mut self, cx: &mut Context<'_>, peer: &Peer) -> Poll<io::Result<()>> {
        let Self::Handshake(accept) = self else { return Poll::Ready(Ok(())) };
        let shaken = match accept {
            Some(accept) => ready!(Pin::new(accept).poll(cx)),
            None => Err(failed()),
        };
        match shaken {
            Ok(stream) => {
                certify(peer, &stream);
                *self = Self::Tls(Box::new(stream));
                Poll::Ready(Ok(()))
            }
            Err(error) => {
                *accept = None;
                Poll::Ready(Err(error))
            }
        }
    }
}

impl AsyncRead for Io {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        whichever!(self.get_mut(), stream => Pin::new(stream).poll_read(cx, buffer))
    }
}

impl AsyncWrite for Io {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        whichever!(self.get_mut(), stream => Pin::new(stream).poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        whichever!(self.get_mut(), stream => Pin::new(stream).poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(stream) => stream.is_write_vectored(),
            Self::Unix(stream) => stream.is_write_vectored(),
            Self::Handshake(_) => true,
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            // Nothing was written yet.
            Self::Handshake(_) => Poll::Ready(Ok(())),
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            // What is dropped is closed.
            Self::Handshake(_) => Poll::Ready(Ok(())),
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

impl fmt::Debug for Io {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp(_) => "tcp",
            Self::Unix(_) => "unix",
            Self::Handshake(_) => "handshake",
            Self::Tls(_) => "tls",
        })
    }
}
