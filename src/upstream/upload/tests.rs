use super::*;
use crate::upstream::RequestBoundary;
use http::HeaderMap;
use proptest::prelude::*;
use std::convert::Infallible;

/// A body that comes in these frames.
struct Pieces(VecDeque<Frame<Bytes>>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(Ok))
    }
}

fn upload(frames: impl IntoIterator<Item = Frame<Bytes>>) -> Upload {
    let limits = UploadLimits { limit: None, patience: Duration::from_secs(30), trailers: 1024 };
    let body = RequestBody::new(Pieces(frames.into_iter().collect()));
    Upload::new(body, false, limits, &Arc::new(RequestBoundary::default()))
}

/// Takes up to `count` frames, and returns their bytes.
async fn take(upload: &mut Upload, count: usize) -> Vec<u8> {
    let mut taken = Vec::new();
    for _ in 0..count {
        match poll_fn(|cx| Pin::new(&mut *upload).poll_frame(cx)).await {
            Some(frame) => taken.extend(frame.expect("no fault").into_data().unwrap_or_default()),
            None => break,
        }
    }
    taken
}

proptest! {
    /// Each attempt gets the body from its beginning, however many frames the attempts before it took.
    #[test]
    fn every_attempt_gets_the_whole_body(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
        attempts in prop::collection::vec(0..9usize, 0..5),
        most in 0..200usize,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(async {
            let (whole, bound) = (pieces.concat(), KeptBytes::new(1000));
            let mut upload = upload(pieces.into_iter().map(|piece| Frame::data(piece.into())));
            for count in attempts {
                let mut replay = upload.record(most, Some(&bound));
                let taken = take(&mut upload, count).await;
                assert!(whole.starts_with(&taken));
                drop(upload);
                let Some(again) = replay.take().await else {
                    assert!(whole.len() > most, "a body of {} bytes was kept", whole.len());
                    assert_eq!(bound.left(), 1000);
                    return;
                };
                assert!(taken.len() <= most);
                assert!(bound.left() + 2 * whole.len() >= 1000, "no byte counts twice");
                upload = again;
            }
            assert_eq!(take(&mut upload, usize::MAX).await, whole);
            drop(upload);
            assert_eq!(bound.left(), 1000);
        });
    }
}

#[tokio::test]
async fn a_body_with_trailers_is_not_kept() {
    let mut upload =
        upload([Frame::data(Bytes::from_static(b"a")), Frame::trailers(HeaderMap::new())]);
    let mut replay = upload.record(100, None);
    take(&mut upload, 3).await;
    drop(upload);
    assert!(replay.take().await.is_none());
}

#[tokio::test]
async fn no_body_is_kept_when_the_bound_is_used_up() {
    let bound = KeptBytes::new(3);
    let mut other = bound.share();
    assert!(other.grow(1));
    let mut upload = upload([Frame::data(Bytes::from_static(b"abc"))]);
    let mut replay = upload.record(100, Some(&bound));
    assert_eq!(take(&mut upload, 2).await, b"abc", "it is still sent");
    drop(upload);
    assert!(replay.take().await.is_none());
}

#[tokio::test]
async fn a_body_that_is_read_ahead_counts_until_it_is_sent() {
    let bound = KeptBytes::new(0);
    let mut body = upload(["abc", "def"].map(|piece| Frame::data(Bytes::from(piece))));
    assert_eq!(body.read_ahead(10, &bound).await.as_deref(), Ok(&b"abcdef"[..]));
    let mut other = bound.share_of_needed();
    assert!(!other.grow((1 << 20) - 5) && other.grow((1 << 20) - 6));
    let refused = upload([Frame::data(Bytes::from("x"))]).read_ahead(10, &bound).await;
    assert_eq!(refused, Err(UploadError::NoRoom));
    // The bytes count for the next attempt, too.
    let mut replay = body.record(10, Some(&bound));
    assert_eq!(take(&mut body, 2).await, b"abcdef");
    drop(body);
    assert!(!other.grow(1));
    drop(replay.take().await.expect("a body"));
    assert!(other.grow(6));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_drips_for_ever_is_given_up() {
    struct Drip(Pin<Box<tokio::time::Sleep>>);
    impl Body for Drip {
        type Data = Bytes;
        type Error = Infallible;
        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            ready!(self.0.as_mut().poll(cx));
            self.0 = Box::pin(tokio::time::sleep(Duration::from_secs(5)));
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"x")))))
        }
    }
    let limits = UploadLimits { limit: None, patience: Duration::from_secs(30), trailers: 1024 };
    let drip = RequestBody::new(Drip(Box::pin(tokio::time::sleep(Duration::from_secs(5)))));
    let mut body = Upload::new(drip, true, limits, &Arc::new(RequestBoundary::default()));
    let started = Instant::now();
    let read = body.read_ahead(1000, &KeptBytes::new(0)).await;
    assert_eq!((read, started.elapsed()), (Err(UploadError::Slow), Duration::from_secs(30)));
}

#[tokio::test]
async fn a_body_is_freed_as_soon_as_no_attempt_can_follow() {
    let bound = KeptBytes::new(10);
    let frames = ["abc", "def"].map(|piece| Frame::data(Bytes::from_static(piece.as_bytes())));
    let mut upload = upload(frames);
    let replay = upload.record(10, Some(&bound));
    take(&mut upload, 1).await;
    assert_eq!(bound.left(), 7);
    drop(replay);
    take(&mut upload, 1).await;
    assert_eq!(bound.left(), 10);
}
