//! Keeps the part of a body that was read before its request was decided, in blocks, so that each is freed as soon as it is
//! sent; and the line of bodies that want much room for that. Reads no body.

use super::{
    error::UploadError,
    kept::{KeptBuffer, KeptBytes, KeptShare},
};
use bytes::Bytes;
use http_body::Frame;
use std::{collections::VecDeque, mem, sync::Arc};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The bytes of a block, 64 KiB.
pub(super) const BLOCK: usize = 64 << 10;

/// A piece of a body that was read ahead, and is sent first.
#[derive(Debug)]
pub(super) struct AheadPiece {
    pub(super) frame: Frame<Bytes>,
    /// Counts the bytes, if they are those that an earlier attempt took or that were kept for a decision.
    pub(super) share: Option<KeptShare>,
    /// The room of a block that was claimed.
    _claim: Option<BodyClaim>,
}

/// The room for large bodies, which they get in the order in which they ask for it. A body claims once, and all that it
/// needs: bodies that each had a part of their room would wait for each other.
#[derive(Debug)]
pub struct BodyLine(Arc<Semaphore>);

/// The room that a body has claimed, in blocks. Given back on drop.
#[derive(Debug)]
pub(super) struct BodyClaim(OwnedSemaphorePermit);

/// Blocks of one body.
#[derive(Debug)]
pub(super) struct AheadBlocks {
    full: VecDeque<AheadPiece>,
    last: KeptBuffer,
    /// The room of `last`, if it was claimed.
    last_claim: Option<BodyClaim>,
    /// The rest of the room that was claimed.
    pub(super) claim: Option<BodyClaim>,
    bound: Arc<KeptBytes>,
    /// The bytes of all blocks.
    pub(super) length: usize,
}

// === impl AheadPiece ===

impl AheadPiece {
    /// A piece with the share that counts it.
    pub(super) fn new(bytes: Bytes, share: KeptShare) -> Self {
        Self { frame: Frame::data(bytes), share: Some(share), _claim: None }
    }
}

impl From<Frame<Bytes>> for AheadPiece {
    fn from(frame: Frame<Bytes>) -> Self {
        Self { frame, share: None, _claim: None }
    }
}

// === impl BodyLine ===

impl BodyLine {
    /// The room for `bytes`.
    pub fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self(Arc::new(Semaphore::new(bytes / BLOCK))))
    }

    /// Waits until there is room for `bytes`. `None` for more than there ever is.
    pub(super) async fn claim(&self, bytes: usize) -> Option<BodyClaim> {
        let blocks = u32::try_from(bytes.div_ceil(BLOCK)).ok()?;
        self.0.clone().acquire_many_owned(blocks).await.ok().map(BodyClaim)
    }
}

// === impl AheadBlocks ===

impl AheadBlocks {
    /// No block. The bytes of blocks that are not claimed count in `bound`.
    pub(super) fn new(bound: &Arc<KeptBytes>) -> Self {
        Self {
            full: VecDeque::new(),
            last: KeptBuffer::new(bound.share_of_needed()),
            last_claim: None,
            claim: None,
            bound: bound.clone(),
            length: 0,
        }
    }

    /// Copies a piece to the end: a piece itself may share the memory of a far larger read buffer.
    pub(super) fn extend(&mut self, mut piece: &[u8]) -> Result<(), UploadError> {
        self.length += piece.len();
        while !piece.is_empty() {
            if self.last.bytes.len() == BLOCK {
                self.begin_block();
            }
            let room = BLOCK - self.last.bytes.len();
            let (part, rest) = piece.split_at(room.min(piece.len()));
            if !self.last.extend(part, BLOCK) {
                return Err(UploadError::NoRoom);
            }
            piece = rest;
        }
        Ok(())
    }

    fn begin_block(&mut self) {
        let claim = self.claim.as_mut().and_then(|claim| claim.0.split(1)).map(BodyClaim);
        let share = match &claim {
            Some(_) => KeptShare::uncounted(),
            None => self.bound.share_of_needed(),
        };
        let full = mem::replace(&mut self.last, KeptBuffer::new(share));
        let claim = mem::replace(&mut self.last_claim, claim);
        self.full.push_back(Self::piece(full, claim));
    }

    /// The blocks in their order. The room that was not needed is given back.
    pub(super) fn finish(mut self) -> VecDeque<AheadPiece> {
        if !self.last.bytes.is_empty() {
            self.full.push_back(Self::piece(self.last, self.last_claim));
        }
        self.full
    }

    fn piece(block: KeptBuffer, claim: Option<BodyClaim>) -> AheadPiece {
        let KeptBuffer { bytes, share } = block;
        let share = claim.is_none().then_some(share);
        AheadPiece { frame: Frame::data(bytes.into()), share, _claim: claim }
    }
}
