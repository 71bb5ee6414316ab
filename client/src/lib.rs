//! A thin client for budgetd.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! use budget_client::{Client, Decision, Dependency, reservation_id};
//! use budget::decision::{Attempt, Outcome, Release, Reserve};
//!
//! let client = Client::new("http://127.0.0.1:7411")?;
//! let payments = Dependency::new("payments")?;
//! let within = Duration::from_secs(1);
//!
//! let id = reservation_id()?;
//! match client.reserve(&payments, &Reserve::new(id, Attempt::ORIGINAL), within).await?.decision {
//!     Decision::Admitted(_) => {
//!         // Send the request, then say how it went.
//!         client.release(&payments, &Release::sent(id, Outcome::Success), within).await?;
//!     }
//!     // Expected under load: an answer, not an error.
//!     Decision::Denied(denied) => eprintln!("not now: {}", denied.reason.name()),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A call never outlasts the time its caller gave it. A Reserve whose answer was lost is sent once more under the same
//! reservation id, which cannot charge twice; nothing else is ever sent again.

mod admin;
mod client;
mod clock;
mod coordinators;
mod credentials;
mod dependency;
mod endpoints;
mod error;
mod leased;
pub mod leasing;
mod metrics;
mod permit;
mod received;
mod session;
mod transport;

pub use admin::{
    About, Balance, By, DependencyStatus, HistoryPage, Holder, HolderPage, How, KillSwitch, PolicyChange, PolicyEdit,
    PolicyOverride, PolicyPage, PolicyRule, PolicyView, Recent, Refusals, ReplicaStatus, RetrySwitch, StatusPage,
    StatusStream, StoreFormat, Switched, Tally, Trial, TrialState, TrialStream, UnitStatus, Window,
};
pub use budget_proto::{
    InvalidMessage, UnitNames,
    convert::{Decision, Mode, Named, Released, Reserved},
};
pub use client::{Client, Options, reservation_id};
pub use clock::boot_time_ns;
pub use coordinators::Coordinators;
pub use credentials::Credentials;
pub use dependency::Dependency;
pub use error::Error;
pub use leased::{Ask, Builder, Counts, Handle, LeasedClient, Refused};
pub use leasing::Standing;
pub use permit::{InFlight, Permit, PermitExpired, Source};
pub use received::{CountReceived, Received};
pub use session::Session;
