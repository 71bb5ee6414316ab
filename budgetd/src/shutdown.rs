//! The end of the daemon: who is told, and which signals ask for it.

use std::{
    io, process,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

/// Tells everything that holds a clone that the daemon shall end.
#[derive(Clone, Debug)]
pub struct Stop {
    /// For whoever looks often.
    begun: Arc<AtomicBool>,
    /// For whoever waits.
    sender: Arc<watch::Sender<bool>>,
}

// === impl Stop ===

impl Stop {
    /// Not begun.
    #[must_use]
    pub fn new() -> Self {
        Self { begun: Arc::new(AtomicBool::new(false)), sender: Arc::new(watch::Sender::new(false)) }
    }

    /// Begins the end. Further calls change nothing.
    pub fn begin(&self) {
        self.begun.store(true, Ordering::Release);
        self.sender.send_replace(true);
    }

    /// Whether the end has begun.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// Waits for the beginning of the end.
    pub fn begun(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut receiver = self.sender.subscribe();
        async move {
            // A sender that is gone asks for the end as well.
            let _begun_or_gone = receiver.wait_for(|begun| *begun).await;
        }
    }
}

impl Default for Stop {
    fn default() -> Self {
        Self::new()
    }
}

/// Ends with the first SIGTERM or SIGINT. From then on, the second one ends the process at once.
///
/// # Errors
/// If the signals cannot be watched.
pub fn signals() -> io::Result<impl Future<Output = ()> + Send> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("asked to end; a second signal ends at once");
        tokio::spawn(async move {
            let code = tokio::select! {
                _ = terminate.recv() => 143,
                _ = interrupt.recv() => 130,
            };
            tracing::warn!("ended by a second signal");
            process::exit(code);
        });
    })
}
