//! Reads a JSON body as far as its request needs it, and checks the rest as it is sent.

use super::{
    Inner, Upload,
    ahead::{AheadBlocks, AheadPiece, BLOCK, BodyLine},
    control::Gate,
    error::UploadError,
    kept::KeptBytes,
};
use crate::json::{JsonPointer, JsonScanner, JsonValues};
use bytes::Bytes;
use http_body::{Body as _, Frame};
use std::{collections::VecDeque, future::poll_fn, mem, pin::Pin, sync::Arc, time::Duration};
use tokio::time::timeout;

/// A body of at most these bytes, 64 KiB, is read whole: it is checked before its request is charged, and can be sent again.
const WHOLE: usize = BLOCK;
/// The bytes of a body that are read without a claim for more room, 256 KiB. So a client that announces much and sends
/// little holds little.
const UNCLAIMED: usize = 4 * BLOCK;

/// How far bodies may be read ahead, and where they find room.
#[derive(Debug, Clone, Copy)]
pub struct JsonReading<'a> {
    /// The parts that are sought.
    pub pointers: &'a Arc<[JsonPointer]>,
    /// The most bytes of a body.
    pub most: usize,
    /// Counts the first 256 KiB of each body.
    pub bound: &'a Arc<KeptBytes>,
    /// The room for all else.
    pub line: &'a BodyLine,
}

/// A body that is being read ahead.
struct JsonAhead {
    scanner: JsonScanner,
    /// Pieces that came before the scanner.
    before: VecDeque<AheadPiece>,
    blocks: AheadBlocks,
    trailers: Option<Frame<Bytes>>,
    /// The values at the bound, once it is reached.
    at_bound: Option<JsonValues>,
    has_ended: bool,
    /// The body is known to be read whole if it is small.
    is_large: bool,
    most: usize,
}

// === impl Upload ===

impl Upload {
    /// Reads the body until the values of all parts are known, and 64 KiB or all of it are there; or as many bytes as may be
    /// read. The bytes that were read are sent first. A client that waits for `100 Continue` gets it through this read.
    ///
    /// # Errors
    ///
    /// [`UploadError`] if the body breaks a rule; [`UploadError::Unclear`] if programs may read it in different ways,
    /// [`UploadError::NoRoom`] if there is no room for it, and [`UploadError::Slow`] if it does not come in the time that is
    /// else for one pause.
    pub async fn read_json(&mut self, reading: JsonReading<'_>) -> Result<JsonValues, UploadError> {
        let scanner = JsonScanner::new(reading.pointers);
        let least = self.size_hint().lower();
        let Some(inner) = &mut self.inner else { return Ok(scanner.values()) };
        if mem::take(&mut inner.is_held) {
            inner.control.0.lock().gate = Gate::Open;
        }
        let mut ahead = JsonAhead {
            scanner,
            before: mem::take(&mut inner.ahead),
            blocks: AheadBlocks::new(reading.bound),
            trailers: None,
            at_bound: None,
            has_ended: false,
            is_large: least > WHOLE as u64,
            most: reading.most,
        };
        let patience = inner.reader.patience();
        inner.read_pieces(&mut ahead, UNCLAIMED, patience).await?;
        if !ahead.is_enough() {
            let most = usize::try_from(least).ok().filter(|least| *least > ahead.blocks.length);
            let most = most.map_or(reading.most, |most| most.min(reading.most));
            let claim = reading.line.claim(most.saturating_sub(ahead.blocks.length));
            ahead.blocks.claim = timeout(patience, claim).await.ok().flatten();
            if ahead.blocks.claim.is_none() {
                return Err(UploadError::NoRoom);
            }
            inner.read_pieces(&mut ahead, usize::MAX, patience).await?;
        }
        let JsonAhead { scanner, before, blocks, trailers, at_bound, has_ended, .. } = ahead;
        let values = at_bound.unwrap_or_else(|| scanner.values());
        inner.ahead = blocks.finish();
        inner.ahead.extend(before);
        inner.ahead.extend(trailers.map(AheadPiece::from));
        inner.scanner = (!has_ended).then(|| Box::new(scanner));
        Ok(values)
    }

    /// Takes the rest of a body that was read in part, and checks it.
    ///
    /// # Errors
    ///
    /// Those of [`Self::read_json`].
    pub async fn check_rest(&mut self) -> Result<(), UploadError> {
        while self.inner.as_ref().is_some_and(|inner| inner.scanner.is_some()) {
            let frame = poll_fn(|cx| Pin::new(&mut *self).poll_frame(cx)).await;
            frame.transpose()?;
        }
        Ok(())
    }
}

// === impl Inner ===

impl Inner {
    /// Reads until enough is known, or more than `most` bytes are there.
    async fn read_pieces(
        &mut self,
        ahead: &mut JsonAhead,
        most: usize,
        patience: Duration,
    ) -> Result<(), UploadError> {
        let reading = async {
            while !ahead.is_enough() && ahead.blocks.length < most {
                let frame = match ahead.before.pop_front() {
                    Some(piece) => Some(piece.frame),
                    None => poll_fn(|cx| self.reader.poll_piece(cx)).await.transpose()?,
                };
                ahead.add(frame)?;
            }
            Ok(())
        };
        timeout(patience, reading).await.unwrap_or(Err(UploadError::Slow))
    }

    /// Checks a piece of a body that was read in part, before the upstream has it; `None` is the end. The last piece is
    /// checked with the end of the document: with it, the upstream would have the whole body.
    pub(super) fn check(&mut self, frame: Option<&Frame<Bytes>>) -> Result<(), UploadError> {
        let Some(scanner) = &mut self.scanner else { return Ok(()) };
        let data = frame.and_then(Frame::data_ref);
        data.map_or(Ok(()), |data| scanner.feed(data))?;
        if data.is_none() || self.reader.is_at_end() {
            scanner.end()?;
            self.scanner = None;
        }
        Ok(())
    }
}

// === impl JsonAhead ===

impl JsonAhead {
    /// Whether nothing more needs to be read.
    fn is_enough(&self) -> bool {
        let is_large = self.is_large || self.blocks.length > WHOLE;
        self.has_ended || self.at_bound.is_some() || (is_large && self.scanner.is_known())
    }

    /// Adds a piece; `None` is the end.
    fn add(&mut self, frame: Option<Frame<Bytes>>) -> Result<(), UploadError> {
        match frame.map(Frame::into_data) {
            Some(Ok(data)) => self.add_data(&data),
            Some(Err(trailers)) => {
                self.trailers = Some(trailers);
                self.end()
            }
            None => self.end(),
        }
    }

    fn add_data(&mut self, data: &[u8]) -> Result<(), UploadError> {
        let (within, beyond) = data.split_at(data.len().min(self.most - self.blocks.length));
        self.scanner.feed(within)?;
        self.blocks.extend(within)?;
        if !beyond.is_empty() {
            // However the body is cut into pieces, the values are those within the bound.
            self.at_bound = Some(self.scanner.values());
            self.scanner.feed(beyond)?;
            self.blocks.extend(beyond)?;
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), UploadError> {
        self.has_ended = true;
        Ok(self.scanner.end()?)
    }
}
