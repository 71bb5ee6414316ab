//! Writes of a busy connection are put together.
//!
//! The task of a connection is woken by the first answer that is ready, and the runtime runs it next. So where many calls
//! are answered at a time, each answer would be written by itself, and a write costs about as much as deciding the call. A
//! write is put off once, until the tasks that are ready now have run, and takes along what they answered. On a connection
//! where that brings nothing it is given up, and tried again now and then.

use std::task::Context;

/// So much is written at once: it would not become much cheaper.
const ENOUGH_BYTES: usize = 8 * 1024;
/// After so many writes that were put off for nothing, no more are.
const PATIENCE: u8 = 4;
/// After so many further writes it is tried again.
const TRY_AGAIN_AFTER: u8 = 32;

/// What a connection has learned about putting writes off.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    /// Bytes of the write that was put off.
    put_off: Option<usize>,
    /// Writes put off for nothing since the last that was not.
    in_vain: u8,
    /// Writes since it was given up.
    at_once: u8,
}

// === impl Gathering ===

impl Gathering {
    /// Whether a write of so many bytes is put off; then the task will be woken to try again.
    pub(super) fn puts_off(&mut self, bytes: usize, cx: &Context<'_>) -> bool {
        if let Some(before) = self.put_off.take() {
            self.in_vain = if bytes > before { 0 } else { self.in_vain.saturating_add(1) };
            return false;
        }
        if bytes >= ENOUGH_BYTES {
            return false;
        }
        if self.in_vain >= PATIENCE {
            self.at_once = self.at_once.saturating_add(1);
            if self.at_once <= TRY_AGAIN_AFTER {
                return false;
            }
            self.at_once = 0;
        }
        self.put_off = Some(bytes);
        // The runtime puts a task that wakes itself behind all others that are ready.
        cx.waker().wake_by_ref();
        true
    }
}

#[cfg(test)]
mod tests {
    use futures::task::noop_waker_ref;

    use super::*;

    fn puts_off(gathering: &mut Gathering, bytes: usize) -> bool {
        gathering.puts_off(bytes, &Context::from_waker(noop_waker_ref()))
    }

    #[test]
    fn a_write_is_put_off_once() {
        let mut gathering = Gathering::default();
        for _ in 0..100 {
            assert!(puts_off(&mut gathering, 10));
            assert!(!puts_off(&mut gathering, 20));
        }
        assert!(!puts_off(&mut gathering, ENOUGH_BYTES));
    }

    #[test]
    fn what_brings_nothing_is_given_up_and_tried_again() {
        let mut gathering = Gathering::default();
        for _ in 0..PATIENCE {
            assert!(puts_off(&mut gathering, 10) && !puts_off(&mut gathering, 10));
        }
        for _ in 0..3 {
            for _ in 0..TRY_AGAIN_AFTER {
                assert!(!puts_off(&mut gathering, 10));
            }
            assert!(puts_off(&mut gathering, 10) && !puts_off(&mut gathering, 10));
        }
        // Once it brings something, it is worth it again.
        while !puts_off(&mut gathering, 10) {}
        assert!(!puts_off(&mut gathering, 11));
        assert!(puts_off(&mut gathering, 10));
    }
}
