//! The connection to a store whose server misbehaves: each call ends, with what is known of it, nothing is sent twice,
//! and the next connection works.

mod replies;

use crate::support::connected_store;
use paceway::{
    algorithm::{Algorithm, TokenBucket},
    store::{
        Check, Entry, Reply, StoreError,
        redis::{ConnectError, Epochs, RedisStore, RedisUrl},
    },
};
use rstest::rstest;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

const NOW: i64 = 1_700_000_000_000_000;

const LIMIT: Duration = Duration::from_secs(20);

/// The beginning of the command by which a new connection looks for the function.
const LOOKS: &[u8] = b"*3\r\n$5\r\nFCALL\r\n";

/// How the server treats the first connection; it serves all others well.
#[derive(Debug, Clone, Copy)]
enum Manner {
    /// Says this to the first command and closes.
    SaysAndCloses(&'static str),
    /// Has the function when it is connected to, and never when it is called. Says this when the library is loaded.
    Forgets(&'static str),
    /// Says this to each command.
    Says(&'static str),
    /// A good answer, a byte at a time.
    Dribbles,
    /// A good answer with a second one after it.
    SaysTwice,
    /// This many zeros after a header that promises more.
    Promises(usize),
    /// These bytes so many times, without an end of the connection.
    Repeats(&'static str, usize),
    IsSilent,
    /// Closes before anything is asked.
    Closes,
    Works,
}

struct Server {
    url: RedisUrl,
    connections: Arc<AtomicUsize>,
    commands: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

// === impl Server ===

impl Server {
    async fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let url = RedisUrl::parse(&format!("redis://127.0.0.1:{port}")).expect("a URL");
        let (connections, commands) =
            (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let (made, asked) = (connections.clone(), commands.clone());
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let manner = if made.fetch_add(1, SeqCst) == 0 { manner } else { Manner::Works };
                // Its errors are its client's.
                let asked = asked.clone();
                tokio::spawn(async move { drop(serve(stream, manner, asked).await) });
            }
        });
        Self { url, connections, commands, task }
    }

    async fn store(&self) -> RedisStore {
        connected_store(&self.url).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A bucket that was never used, and one request admitted.
fn good() -> Vec<u8> {
    let level = [2, 0, 1_000_000];
    let part = [0, NOW, 0, NOW, 0];
    let numbers = [&[NOW, 1, 0, 0, 1][..], &level, &part].concat();
    let packed: Vec<u8> =
        numbers.into_iter().flat_map(|number| (number as f64).to_le_bytes()).collect();
    [b"$104\r\n", &packed[..], b"\r\n"].concat()
}

async fn serve(
    mut stream: TcpStream,
    manner: Manner,
    commands: Arc<AtomicUsize>,
) -> std::io::Result<()> {
    if let Manner::Closes = manner {
        return Ok(());
    }
    let mut bytes = vec![0; 1 << 20];
    loop {
        // A command comes in one piece here, except the text of the script.
        let count = match stream.read(&mut bytes).await? {
            0 => return Ok(()),
            count if !bytes[..count].starts_with(b"*") => continue,
            _ if matches!(manner, Manner::Forgets(_)) && bytes.starts_with(LOOKS) => {
                stream.write_all(b":0\r\n").await?;
                continue;
            }
            count if is_of_a_start(&bytes[..count]) => {
                // It never says which server it is, and keeps no functions.
                stream.write_all(b"-NOPERM 'fcall'\r\n").await?;
                continue;
            }
            // Two calls may come at once.
            count => bytes[..count].windows(7).filter(|word| word == b"EVALSHA").count().max(1),
        };
        commands.fetch_add(count, SeqCst);
        match manner {
            Manner::SaysAndCloses(words) => return stream.write_all(words.as_bytes()).await,
            Manner::Says(words) => stream.write_all(words.as_bytes()).await?,
            Manner::Forgets(words) => {
                // After the numbers of words and of bytes.
                let said = match bytes.split(|byte| *byte == b'\n').nth(2) {
                    Some(b"FCALL\r") => "-ERR Function not found\r\n",
                    Some(b"FUNCTION\r") => words,
                    _ => "-NOSCRIPT No matching script.\r\n",
                };
                stream.write_all(said.as_bytes()).await?;
            }
            Manner::Dribbles => {
                stream.set_nodelay(true)?;
                for byte in good() {
                    stream.write_all(&[byte]).await?;
                    sleep(Duration::from_millis(1)).await;
                }
            }
            Manner::SaysTwice => stream.write_all(&[good(), good()].concat()).await?,
            Manner::Promises(count) => {
                stream.write_all(b"$8388000\r\n").await?;
                stream.write_all(&vec![0; count]).await?;
                return Ok(());
            }
            Manner::Repeats(bytes, count) => {
                stream.write_all(bytes.repeat(count).as_bytes()).await?;
            }
            Manner::IsSilent => {}
            Manner::Works | Manner::Closes => stream.write_all(&good().repeat(count)).await?,
        }
    }
}

/// Whether a command is one that each new connection begins with.
fn is_of_a_start(command: &[u8]) -> bool {
    command.ends_with(b"\r\nINFO\r\n") || command.starts_with(LOOKS)
}

fn ask() -> Entry {
    let algorithm = Algorithm::TokenBucket(TokenBucket::new(1, 1_000_000, 3).expect("a rule"));
    let check = Check::new("{k}", algorithm);
    Entry::Reserve { checks: Arc::new([check]), budget: 0, ticket: None }
}

async fn decide(store: &RedisStore) -> Result<bool, StoreError> {
    let asked = timeout(LIMIT, store.run_at(None, &[ask()])).await.expect("an end");
    asked.map(|replies| match &replies[..] {
        [Reply::Decision(decision)] => decision.admitted,
        replies => panic!("{replies:?}"),
    })
}

/// It is decided again, on a new connection or the same.
async fn assert_recovers(store: &RedisStore) {
    let started = Instant::now();
    while decide(store).await != Ok(true) {
        assert!(started.elapsed() < LIMIT, "it does not come back");
        sleep(Duration::from_millis(20)).await;
    }
}

#[rstest]
#[case::busy("-BUSY Redis is busy running a script.\r\n")]
#[case::full("-OOM command not allowed when used memory > 'maxmemory'.\r\n")]
#[case::moved("-MOVED 1234 127.0.0.1:7001\r\n")]
#[case::rights("-NOPERM this user has no permissions\r\n")]
#[case::empty("-\r\n")]
#[tokio::test]
async fn an_error_has_the_text_of_the_server(#[case] words: &'static str) {
    let server = Server::start(Manner::Says(words)).await;
    let store = server.store().await;
    let error = decide(&store).await;
    assert_eq!(error, Err(StoreError::Refused(words[1..].trim_end().to_owned())));
    assert_eq!((server.commands.load(SeqCst), server.connections.load(SeqCst)), (1, 1));
}

/// Nothing was executed, and another server may have its place: the store looks for it again, once all callers have their
/// answers.
#[rstest]
#[case::loading("-LOADING Redis is loading the dataset in memory\r\n")]
#[case::replica("-READONLY You can't write against a read only replica.\r\n")]
#[case::cut_off("-MASTERDOWN Link with MASTER is down\r\n")]
#[tokio::test]
async fn a_wrong_server_is_disconnected(#[case] words: &'static str) {
    let server = Server::start(Manner::Says(words)).await;
    let store = server.store().await;
    let error = decide(&store).await;
    assert_eq!(error, Err(StoreError::Refused(words[1..].trim_end().to_owned())));
    assert_recovers(&store).await;
    assert_eq!(server.connections.load(SeqCst), 2);
}

/// A Cluster of one, which answers all but the question for its slots with `says`.
async fn cluster(says: &'static str) -> (RedisStore, Arc<AtomicUsize>, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("its address").port();
    let commands = Arc::<AtomicUsize>::default();
    let asked = commands.clone();
    let task = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let asked = asked.clone();
            tokio::spawn(async move {
                let slots = format!(
                    "*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$1\r\na\r\n"
                );
                let says = says.replace("PORT", &port.to_string());
                let mut bytes = vec![0; 1 << 20];
                while let Ok(count @ 1..) = stream.read(&mut bytes).await {
                    // Several commands may come at once.
                    let mut answer = String::new();
                    for at in 0..count {
                        let rest = &bytes[at..count];
                        if rest.starts_with(b"SLOTS") {
                            answer += &slots;
                        } else if rest.starts_with(b"INFO") || rest.starts_with(b"FCALL") {
                            // It never says which server it is, and keeps no functions.
                            answer += "-NOPERM 'fcall'\r\n";
                        } else if rest.starts_with(b"ASKING") {
                            answer += "+OK\r\n";
                        } else if rest.starts_with(b"EVALSHA") {
                            asked.fetch_add(1, SeqCst);
                            answer += &says;
                        }
                    }
                    if stream.write_all(answer.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    let url = RedisUrl::parse(&format!("redis-cluster://127.0.0.1:{port}")).expect("a URL");
    let store = connected_store(&url).await;
    (store, commands, task)
}

/// Two nodes could name each other for ever. After `TRYAGAIN` the epoch is asked for alone, which no node can refuse in this way.
#[rstest]
#[case::moved("-MOVED 1 127.0.0.1:PORT\r\n", "MOVED", 16)]
#[case::asked("-ASK 1 127.0.0.1:PORT\r\n", "ASK", 16)]
#[case::halfway("-TRYAGAIN Multiple keys request during rehashing of slot\r\n", "TRYAGAIN", 2)]
#[case::down("-CLUSTERDOWN Hash slot not served\r\n", "CLUSTERDOWN", 1)]
#[tokio::test]
async fn a_command_follows_few_redirects(
    #[case] says: &'static str,
    #[case] start: &str,
    #[case] times: usize,
) {
    let (store, commands, task) = cluster(says).await;
    match decide(&store).await {
        Err(StoreError::Refused(error)) => assert!(error.starts_with(start), "{error}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(commands.load(SeqCst), times);
    task.abort();
}

#[tokio::test]
async fn a_server_that_forgets_the_script_gets_it_once_a_call() {
    let server = Server::start(Manner::Says("-NOSCRIPT No matching script.\r\n")).await;
    let store = server.store().await;
    let error = decide(&store).await.expect_err("no answer");
    assert_eq!(error.kind(), "refused");
    assert_eq!(server.commands.load(SeqCst), 2);
}

/// A call is sent as a script when the function is not there, however often the library was loaded.
#[rstest]
#[case::takes_it("$1\r\na\r\n", 8)]
#[case::has_it_already("-ERR Library 'a' already exists\r\n", 5)]
#[case::is_full("-OOM command not allowed when used memory > 'maxmemory'.\r\n", 4)]
#[case::forbids_it("-NOPERM this user has no permissions\r\n", 4)]
#[tokio::test]
async fn a_server_that_forgets_the_function_gets_it_a_few_times_a_call(
    #[case] says: &'static str,
    #[case] commands: usize,
) {
    let server = Server::start(Manner::Forgets(says)).await;
    let store = server.store().await;
    let error = decide(&store).await.expect_err("no answer");
    assert_eq!(error.kind(), "refused");
    assert_eq!(server.commands.load(SeqCst), commands);
}

#[tokio::test]
async fn a_silent_server_is_given_up() {
    let server = Server::start(Manner::IsSilent).await;
    let store = server.store().await;
    let calls = [(); 3].map(|()| {
        let store = store.clone();
        tokio::spawn(async move { decide(&store).await })
    });
    for call in calls {
        let error = call.await.expect("a task").expect_err("no answer");
        assert_eq!(error.kind(), "unreachable", "{error}");
    }
    assert!(server.commands.load(SeqCst) <= 3, "sent twice");
    assert_recovers(&store).await;
}

#[tokio::test]
async fn an_unused_connection_that_ends_is_replaced_in_advance() {
    let server = Server::start(Manner::Closes).await;
    let store = server.store().await;
    let started = Instant::now();
    while server.connections.load(SeqCst) < 2 || !store.is_connected() {
        assert!(started.elapsed() < LIMIT, "it is not made again");
        sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(decide(&store).await, Ok(true));
}

#[tokio::test]
async fn without_a_server_decisions_fail_at_once() {
    let port = crate::support::free_port();
    let url = RedisUrl::parse(&format!("redis://127.0.0.1:{port}")).expect("a URL");
    let store =
        RedisStore::open(&url, &Epochs::new("paceway", metrics::Counter::noop())).expect("a store");
    let connected = store.connected(Duration::from_millis(300)).await;
    assert!(matches!(connected, Err(ConnectError::Unreachable(_))), "{connected:?}");
    let Err(StoreError::Away(why)) = decide(&store).await else { panic!("it was asked") };
    assert!(why.contains(&format!("127.0.0.1:{port}: Connection refused")), "{why}");
}

#[rstest]
#[case::wrong_password("-WRONGPASS invalid username-password pair\r\n")]
#[case::no_redis("SSH-2.0-OpenSSH_9.2\r\n")]
#[tokio::test]
async fn a_refused_login_is_reported(#[case] words: &'static str) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("its address").port();
    let task = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let asked = Arc::default();
            tokio::spawn(async move { drop(serve(stream, Manner::Says(words), asked).await) });
        }
    });
    let url = RedisUrl::parse(&format!("redis://:secret@127.0.0.1:{port}")).expect("a URL");
    let store =
        RedisStore::open(&url, &Epochs::new("paceway", metrics::Counter::noop())).expect("a store");
    let connected = store.connected(LIMIT).await;
    assert!(matches!(connected, Err(ConnectError::Refused(_))), "{connected:?}");
    assert!(!store.is_connected());
    task.abort();
}
