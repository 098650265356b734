//! Opens a socket to a server of the store, at the first address of its name that answers. Sends nothing on it.

use socket2::{SockRef, TcpKeepalive};
use std::{future::Future, io, net::SocketAddr, time::Duration};
use tokio::{
    net::{TcpStream, lookup_host},
    task::JoinSet,
    time::timeout,
};

/// When an address has been silent for 250 ms, the next one is tried beside it: the connection attempt delay of RFC 8305,
/// section 5.
const NEXT: Duration = Duration::from_millis(250);
/// The greatest number of addresses of one name that are tried.
const MOST_ADDRESSES: usize = 16;
/// An idle connection sends a probe each minute. Firewalls drop connections that are idle for longer, and a server that is
/// gone does not answer it.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Connects to the first address of `host` that answers. The caller sets a time-out.
///
/// # Errors
///
/// The error of the name, or of the last address that refused.
pub(in crate::store::redis) async fn dial(host: &str, port: u16) -> io::Result<TcpStream> {
    let addresses = lookup_host((host, port)).await?;
    let stream = first(addresses.take(MOST_ADDRESSES), TcpStream::connect::<SocketAddr>).await?;
    // A command is written whole, so delaying its last packet (Nagle) gains nothing.
    stream.set_nodelay(true)?;
    SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
    Ok(stream)
}

/// Returns the result of the first attempt to `connect` that succeeds.
async fn first<T, F>(
    addresses: impl Iterator<Item = SocketAddr>,
    connect: impl Fn(SocketAddr) -> F,
) -> io::Result<T>
where
    T: Send + 'static,
    F: Future<Output = io::Result<T>> + Send + 'static,
{
    let mut addresses = addresses.peekable();
    let mut why = io::Error::new(io::ErrorKind::NotFound, "its name has no address");
    // Dropped, the attempts end.
    let mut attempts = JoinSet::new();
    loop {
        if let Some(address) = addresses.next() {
            attempts.spawn(connect(address));
        }
        let ended = match addresses.peek() {
            Some(_) => timeout(NEXT, attempts.join_next()).await.ok(),
            None => Some(attempts.join_next().await),
        };
        match ended {
            Some(Some(Ok(Ok(stream)))) => return Ok(stream),
            Some(Some(Ok(Err(error)))) => why = error,
            // An attempt is cancelled only with the runtime.
            Some(Some(Err(error))) => why = io::Error::other(error),
            Some(None) => return Err(why),
            // Silent so far: the next address is tried beside it.
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::future::pending;
    use tokio::time::{Instant, sleep};

    /// The result of connecting to one address, and after how many ms it comes.
    #[derive(Clone, Copy)]
    enum Is {
        Silent,
        Refused(u64),
        There(u64),
    }
    use Is::{Refused, Silent, There};

    #[rstest]
    #[case::the_only_one(&[There(10)], Ok(0), 10)]
    #[case::the_first(&[There(10), There(0)], Ok(0), 10)]
    #[case::behind_one_that_refuses(&[Refused(10), There(10)], Ok(1), 20)]
    #[case::behind_one_that_is_silent(&[Silent, There(10)], Ok(1), 260)]
    #[case::behind_two_that_are_silent(&[Silent, Silent, There(10)], Ok(2), 510)]
    #[case::the_first_beside_the_second(&[There(300), There(100)], Ok(0), 300)]
    #[case::the_second_is_faster(&[There(600), There(100)], Ok(1), 350)]
    #[case::none(&[], Err("its name has no address"), 0)]
    #[case::all_refuse(&[Refused(10), Refused(10)], Err("no 1"), 20)]
    #[tokio::test(start_paused = true)]
    async fn dials_the_address_that_accepts(
        #[case] are: &'static [Is],
        #[case] expected: Result<usize, &str>,
        #[case] after: u64,
    ) {
        let addresses = (0..are.len()).map(|i| {
            let port = u16::try_from(i).expect("few");
            SocketAddr::from(([127, 0, 0, 1], port))
        });
        let started = Instant::now();
        let got = first(addresses, |address| async move {
            let i = usize::from(address.port());
            match are[i] {
                Silent => pending().await,
                Refused(ms) => {
                    sleep(Duration::from_millis(ms)).await;
                    Err(io::Error::other(format!("no {i}")))
                }
                There(ms) => {
                    sleep(Duration::from_millis(ms)).await;
                    Ok(i)
                }
            }
        });
        let got = got.await.map_err(|error| error.to_string());
        assert_eq!(got, expected.map_err(str::to_owned));
        let took = started.elapsed().as_millis();
        // Timers are exact to a ms.
        assert!((u128::from(after)..u128::from(after) + 10).contains(&took), "{took} ms");
    }

    #[tokio::test]
    async fn an_idle_connection_sends_keepalives() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let stream = dial("127.0.0.1", port).await.expect("a connection");
        let socket = SockRef::from(&stream);
        assert_eq!((socket.keepalive().ok(), stream.nodelay().ok()), (Some(true), Some(true)));
    }
}
