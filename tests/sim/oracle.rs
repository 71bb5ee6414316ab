//! What judges a run, apart from the code under test: windows of what happened, states at every event, return, permits,
//! and useful work.

pub(crate) mod level;
pub(crate) mod returned;
pub(crate) mod state;
pub(crate) mod windows;
pub(crate) mod work;
