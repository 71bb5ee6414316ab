//! What judges a run, apart from the code under test: windows of what happened, states at every event, return, permits,
//! and useful work.

pub mod returned;
pub mod state;
pub mod windows;
pub mod work;
