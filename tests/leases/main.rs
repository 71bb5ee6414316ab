//! Leases under faults: real daemons, real clients, and processes that die, stand still and split.
//!
//! Every test keeps what holders really admitted, each with its time, and judges all windows of it by the bound: T1 for
//! admissions, T2 for retries. What a fault may add is named, and the bound of the pure crate says how much that is; it is
//! printed beside what was seen. T4 is that every holder is leased again in the stated time.
#![allow(clippy::unwrap_used, reason = "tests")]

mod agents;
mod billed;
mod bills;
mod coordinators;
mod fleet;
mod holder;
mod judge;
mod operating;
mod outages;
mod pace;
mod policies;
mod preload;
mod processes;
mod reach;
mod redis;
mod reloads;
mod setting;
mod sharing;
mod subleases;
mod suite;
mod upgrades;
mod useful;
