//! Bounds the bytes of messages that a gateway keeps in memory: bodies that are read before a request is decided, and
//! messages that are kept because a request may be sent again. Knows no message.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// The bytes that are left to bodies without which no request can be decided, when all others are used up: 1 MiB.
const FOR_NEEDED: usize = 1 << 20;

/// The bytes that all requests of a gateway together may still keep. When none is left, further requests are sent once.
#[derive(Debug)]
pub struct KeptBytes(AtomicUsize);

/// The bytes that one message keeps. They are given back on drop.
#[derive(Debug)]
pub struct KeptShare {
    /// `None` if they are not counted.
    of: Option<Arc<KeptBytes>>,
    bytes: usize,
    /// The bytes that this share leaves to others.
    spares: usize,
}

/// The bytes of one message, whose memory a share counts: all of it, also what is not filled yet.
#[derive(Debug)]
pub struct KeptBuffer {
    /// The pieces so far.
    pub bytes: Vec<u8>,
    /// Counts the capacity of `bytes`.
    pub share: KeptShare,
}

// === impl KeptBytes ===

impl KeptBytes {
    /// A bound of `most` bytes, and 1 MiB for bodies that must be read.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self(AtomicUsize::new(most.saturating_add(FOR_NEEDED))))
    }

    /// The share of a message that keeps nothing yet, and need not be kept.
    pub fn share(self: &Arc<Self>) -> KeptShare {
        KeptShare { of: Some(self.clone()), bytes: 0, spares: FOR_NEEDED }
    }

    /// The share of a body that keeps nothing yet, and without which its request cannot be decided.
    pub fn share_of_needed(self: &Arc<Self>) -> KeptShare {
        KeptShare { of: Some(self.clone()), bytes: 0, spares: 0 }
    }

    /// The bytes that messages may still keep which need not be kept.
    pub fn left(&self) -> usize {
        self.0.load(Relaxed).saturating_sub(FOR_NEEDED)
    }
}

// === impl KeptShare ===

impl KeptShare {
    /// The share of a message whose bytes are not counted.
    pub(in crate::upstream) fn uncounted() -> Self {
        Self { of: None, bytes: 0, spares: 0 }
    }

    /// Takes `bytes` more; false, and nothing is taken, if so many are not left.
    pub fn grow(&mut self, bytes: usize) -> bool {
        if let Some(of) = &self.of {
            let spares = self.spares;
            let less = |left: usize| left.checked_sub(bytes).filter(|left| *left >= spares);
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

// === impl KeptBuffer ===

impl KeptBuffer {
    /// An empty one.
    pub fn new(share: KeptShare) -> Self {
        Self { bytes: Vec::new(), share }
    }

    /// Copies a piece to the end. A piece itself may share the memory of a far larger read buffer. False, and nothing is
    /// copied, if there are more than `most` bytes then, or the share may not have the memory.
    pub fn extend(&mut self, piece: &[u8], most: usize) -> bool {
        let (length, capacity) = (self.bytes.len() + piece.len(), self.bytes.capacity());
        if length > most {
            return false;
        }
        if length > capacity {
            // It doubles, so that a body of many small pieces is not copied again for each of them.
            let wanted = capacity.saturating_mul(2).clamp(length, most);
            if !self.share.grow(wanted - capacity) {
                return false;
            }
            self.bytes.reserve_exact(wanted - self.bytes.len());
        }
        self.bytes.extend_from_slice(piece);
        true
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
    fn bodies_that_must_be_read_have_reserved_room() {
        let bound = KeptBytes::new(100);
        let (mut other, mut needed) = (bound.share(), bound.share_of_needed());
        assert!(other.grow(100) && !other.grow(1));
        assert!(needed.grow(FOR_NEEDED) && !needed.grow(1));
        drop(other);
        assert!(needed.grow(100) && !bound.share().grow(1));
    }

    #[test]
    fn a_buffer_counts_its_memory_and_not_its_length() {
        let bound = KeptBytes::new(100);
        let mut buffer = KeptBuffer::new(bound.share());
        assert!(buffer.extend(&[1; 30], 80));
        assert_eq!(bound.left(), 70);
        assert!(buffer.extend(&[2; 1], 80));
        assert_eq!((bound.left(), buffer.bytes.capacity()), (40, 60));
        assert!(!buffer.extend(&[3; 50], 80), "81 bytes");
        assert!(buffer.extend(&[3; 49], 80));
        assert_eq!((bound.left(), buffer.bytes.len()), (20, 80));
        let mut other = KeptBuffer::new(bound.share());
        assert!(!other.extend(&[4; 21], 80) && other.extend(&[4; 20], 80));
    }

    #[test]
    fn uncounted_shares_have_no_bound() {
        let mut share = KeptShare::uncounted();
        assert!(share.grow(usize::MAX) && share.grow(usize::MAX));
    }
}
