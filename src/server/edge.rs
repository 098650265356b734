//! The edge of a connection: it is between the socket and hyper's parser, and knows what the parser keeps to itself. It
//! replaces the parser's bare refusals by problem documents. It parses nothing that the parser has accepted.

mod heads;
mod io;
mod parser_side;
mod state;
mod stream;

pub(super) use heads::serialized;
pub(super) use parser_side::Edge;
pub(super) use state::ClientWait;
pub(super) use stream::ClientStream;

#[cfg(test)]
mod tests;
