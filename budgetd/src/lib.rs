//! budgetd: the daemon, as a library so that tests and the load test can start it.

pub mod cli;
pub mod clock;
pub mod policies;
pub mod store;
