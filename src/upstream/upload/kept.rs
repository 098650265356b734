//! Bounds the bytes of messages that a gateway keeps in memory because a request may be sent again. Keeps no byte itself.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// The bytes that all requests of a gateway together may still keep. When none is left, further requests are sent once.
#[derive(Debug)]
pub struct KeptBytes(AtomicUsize);

/// The bytes that one message keeps. They are given back on drop.
#[derive(Debug)]
pub struct KeptShare {
    /// `None` if they are not counted.
    of: Option<Arc<KeptBytes>>,
    bytes: usize,
}

// === impl KeptBytes ===

impl KeptBytes {
    /// A bound of `most` bytes.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self(AtomicUsize::new(most)))
    }

    /// The share of a message that keeps nothing yet.
    pub fn share(self: &Arc<Self>) -> KeptShare {
        KeptShare { of: Some(self.clone()), bytes: 0 }
    }

    /// The bytes that may still be kept.
    pub fn left(&self) -> usize {
        self.0.load(Relaxed)
    }
}

// === impl KeptShare ===

impl KeptShare {
    /// The share of a message whose bytes are not counted.
    pub(in crate::upstream) fn uncounted() -> Self {
        Self { of: None, bytes: 0 }
    }

    /// Takes `bytes` more; false, and nothing is taken, if so many are not left.
    pub fn grow(&mut self, bytes: usize) -> bool {
        if let Some(of) = &self.of {
            let less = |left: usize| left.checked_sub(bytes);
            if of.0.fetch_update(Relaxed, Relaxed, less).is_err() {
                return false;
            }
            self.bytes += bytes;
        }
        true
    }
}

impl Drop for KeptShare {
    fn drop(&mut self) {
        if let Some(of) = &self.of {
            of.0.fetch_add(self.bytes, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_shares_together_stay_within_the_bound() {
        let bound = KeptBytes::new(100);
        let (mut one, mut other) = (bound.share(), bound.share());
        assert!(one.grow(60) && other.grow(40));
        assert!(!other.grow(1), "all of it is used");
        assert_eq!(bound.left(), 0);
        drop(one);
        assert_eq!(bound.left(), 60);
        assert!(other.grow(60) && !other.grow(1));
        drop(other);
        assert_eq!(bound.left(), 100);
    }

    #[test]
    fn uncounted_shares_have_no_bound() {
        let mut share = KeptShare::uncounted();
        assert!(share.grow(usize::MAX) && share.grow(usize::MAX));
    }
}
