//! The body of a request as its server hands it over: hyper's own type on the binary's connections, any body where the proxy
//! is mounted in another program.

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use parking_lot::Mutex;
use std::{
    any::Any,
    error::Error,
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

type BoxError = Box<dyn Error + Send + Sync>;
type BoxBody = Pin<Box<dyn Body<Data = Bytes, Error = BoxError> + Send>>;

/// The body of a request that a server has accepted.
#[derive(Debug)]
pub struct RequestBody(Kind);

enum Kind {
    Incoming(Incoming),
    /// Such a body need not be `Sync`; the lock makes it so, and no two tasks ever contend for it.
    Boxed(Mutex<BoxBody>),
}

/// A body that only changes the type of another one's errors.
struct AnyError<B>(B);

// === impl RequestBody ===

impl RequestBody {
    /// Takes `body` over. hyper's own body is kept as it is, any other one is boxed.
    pub fn new<B>(body: B) -> Self
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BoxError>,
    {
        // The type is known at compile time, so the compiler keeps only one of the two branches.
        let mut body = Some(body);
        if let Some(incoming) = (&mut body as &mut dyn Any).downcast_mut::<Option<Incoming>>()
            && let Some(incoming) = incoming.take()
        {
            return Self(Kind::Incoming(incoming));
        }
        match body {
            Some(body) => Self(Kind::Boxed(Mutex::new(Box::pin(AnyError(body))))),
            // Only an `Incoming` was taken, and that has returned: this arm never runs.
            None => Self(Kind::Boxed(Mutex::new(Box::pin(AnyError(String::new()))))),
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.0 {
            Kind::Incoming(incoming) => {
                let frame = Pin::new(incoming).poll_frame(cx);
                frame.map(|frame| frame.map(|frame| frame.map_err(Into::into)))
            }
            Kind::Boxed(body) => body.get_mut().as_mut().poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Incoming(incoming) => incoming.is_end_stream(),
            Kind::Boxed(body) => body.lock().is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Incoming(incoming) => incoming.size_hint(),
            Kind::Boxed(body) => body.lock().size_hint(),
        }
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Incoming(_) => "Incoming",
            Self::Boxed(_) => "Boxed",
        })
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for AnyError<B>
where
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = Pin::new(&mut self.0).poll_frame(cx);
        frame.map(|frame| frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
