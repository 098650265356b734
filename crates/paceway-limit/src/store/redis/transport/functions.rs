//! How a server executes the decision script: by the function of a library that it keeps, or, where it keeps none, by
//! `EVALSHA`. Loads what is missing, and sends a call again only after an error that says that nothing was executed.

use super::{
    super::{
        library::{LibraryRefusal, NAMES, PROGRAM},
        reason::ConnectError,
        url::Endpoint,
    },
    access::{Access, ask},
    messages::{command, words},
    session::Session,
    stream::RedisStream,
};
use crate::store::{
    StoreError,
    health::{ScriptedConnection, ScriptedServers},
};
use redis::{Cmd, Value};
use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{sync::Mutex, time::Instant};

/// How often a call meets a server without the function at most: another client may remove it each time.
const TRIES: usize = 3;
/// A server that has not taken the library is sent it again after 1 s.
const RETRY: Duration = Duration::from_secs(1);
/// How often in a row a library of our name may have another function than ours before the server is sent the script for good.
const MOST_FOREIGN: u32 = 3;
/// How many versions of the library a server keeps, 0.6 MB each. A rolling deployment needs two.
const VERSIONS: usize = 8;

/// Makes the command that executes the decision script, from the command's name and that of the script.
pub(in crate::store::redis) type WriteScript<'w> = dyn Fn(&str, &str) -> Cmd + Sync + 'w;

/// A command or a call of the decision script, which a server is to execute.
#[derive(Clone, Copy)]
pub(in crate::store::redis) enum Sent<'s> {
    Command(&'s Cmd),
    Script(&'s WriteScript<'s>),
}

/// Whether the server of one connection keeps functions.
pub(super) struct Functions {
    server: Arc<str>,
    servers: Arc<ScriptedServers>,
    /// Set once the server is sent the script.
    scripted: OnceLock<ScriptedConnection>,
    /// How often the library was loaded over this connection.
    loads: AtomicU64,
    /// Held while the library is loaded.
    refusals: Mutex<Refusals>,
}

/// The loads that a server refused.
#[derive(Default)]
struct Refusals {
    last: Option<Instant>,
    /// How often in a row the server had a library of our name without our function.
    foreign: u32,
}

/// The end of a load.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    /// The server has the library.
    Done,
    /// The server has a library of its name already.
    Exists,
    Refused,
}

// === impl Functions ===

impl Functions {
    /// Asks a server that a connection is being made to whether it has the function, and loads the library if not.
    pub(super) async fn find(
        access: &Access,
        stream: &mut RedisStream,
        endpoint: &Endpoint,
    ) -> Result<Self, ConnectError> {
        let (server, servers) = (Arc::from(endpoint.to_string()), access.scripted.clone());
        let (scripted, loads) = (OnceLock::new(), AtomicU64::new(0));
        let functions = Self { server, servers, scripted, loads, refusals: Mutex::default() };
        if !access.uses_functions {
            functions.give_up(None);
            return Ok(functions);
        }
        let call: [&[u8]; 3] = [b"FCALL", PROGRAM.function.as_bytes(), b"0"];
        let said = ask(stream, endpoint, &call).await?;
        let mut refusal = read_refusal(&said, LibraryRefusal::of_call);
        if refusal == Some(LibraryRefusal::Missing) {
            let said = ask(stream, endpoint, &load()).await?;
            refusal = read_refusal(&said, LibraryRefusal::of_load);
            if refusal.is_none() {
                remove_old(stream, endpoint).await?;
            }
        }
        match refusal {
            Some(LibraryRefusal::Never(why)) => functions.give_up(Some(&why)),
            None | Some(LibraryRefusal::Exists) => {
                functions.servers.note_library(&functions.server)
            }
            Some(_) => {}
        }
        Ok(functions)
    }

    /// The server is sent the script from now on: it said `why`, or was not asked.
    fn give_up(&self, why: Option<&str>) {
        self.scripted.get_or_init(|| self.servers.add(&self.server, why));
    }
}

// === impl Session ===

impl Session {
    /// Has the decision script executed once, in the form that the server takes, and waits for the reply.
    ///
    /// # Errors
    ///
    /// As of [`Self::call`].
    pub(super) async fn run(
        &self,
        write: &WriteScript<'_>,
        is_asking: bool,
    ) -> Result<Value, StoreError> {
        if self.functions.scripted.get().is_none()
            && let Some(said) = self.call_function(write, is_asking).await?
        {
            return Ok(said);
        }
        match self.call(&write("EVALSHA", &PROGRAM.hash), is_asking).await? {
            // The server has no script of this hash and has executed nothing.
            Value::ServerError(error) if error.code() == "NOSCRIPT" => {
                self.call(&write("EVAL", &PROGRAM.script), is_asking).await
            }
            said => Ok(said),
        }
    }

    /// Calls the function; `None` if the server does not execute it now.
    async fn call_function(
        &self,
        write: &WriteScript<'_>,
        is_asking: bool,
    ) -> Result<Option<Value>, StoreError> {
        let call = write("FCALL", &PROGRAM.function);
        let mut loaded = Load::Done;
        for _ in 0..TRIES {
            let loads = self.functions.loads.load(Relaxed);
            let said = self.call(&call, is_asking).await?;
            loaded = match read_refusal(&said, LibraryRefusal::of_call) {
                None => return Ok(Some(said)),
                // Boxed, so that the future of a call stays small.
                Some(LibraryRefusal::Missing) => Box::pin(self.load(loads, loaded)).await?,
                Some(LibraryRefusal::Never(why)) => {
                    self.functions.give_up(Some(&why));
                    Load::Refused
                }
                Some(_) => Load::Refused,
            };
            if loaded == Load::Refused {
                break;
            }
        }
        Ok(None)
    }

    /// Loads the library, unless another call has done so after the first `loads`. The call has found no function after its
    /// load `before`.
    async fn load(&self, loads: u64, before: Load) -> Result<Load, StoreError> {
        let mut refusals = self.functions.refusals.lock().await;
        if self.functions.loads.load(Relaxed) != loads {
            return Ok(Load::Done);
        }
        if refusals.last.is_some_and(|last| last.elapsed() < RETRY) {
            return Ok(Load::Refused);
        }
        if before == Load::Exists {
            // Also where the library was removed in between, so that one time says little.
            refusals.last = Some(Instant::now());
            refusals.foreign += 1;
            if refusals.foreign >= MOST_FOREIGN {
                self.functions.give_up(Some("a library of the same name lacks the function"));
            }
            return Ok(Load::Refused);
        }
        let said = self.call(&command(&load()), false).await?;
        match read_refusal(&said, LibraryRefusal::of_load) {
            None => {
                self.functions.loads.fetch_add(1, Relaxed);
                refusals.foreign = 0;
                return Ok(Load::Done);
            }
            Some(LibraryRefusal::Exists) => return Ok(Load::Exists),
            Some(LibraryRefusal::Never(why)) => self.functions.give_up(Some(&why)),
            Some(_) => refusals.last = Some(Instant::now()),
        }
        Ok(Load::Refused)
    }
}

fn read_refusal(
    said: &Value,
    read: impl FnOnce(&str) -> Option<LibraryRefusal>,
) -> Option<LibraryRefusal> {
    let Value::ServerError(error) = said else { return None };
    read(&words(error))
}

fn load() -> [&'static [u8]; 3] {
    [b"FUNCTION", b"LOAD", PROGRAM.library.as_bytes()]
}

/// Removes the libraries of all other versions when there are too many. A gateway that still needs one loads it again, and
/// removes none then.
async fn remove_old(stream: &mut RedisStream, endpoint: &Endpoint) -> Result<(), ConnectError> {
    let names = format!("{NAMES}*");
    let list: [&[u8]; 4] = [b"FUNCTION", b"LIST", b"LIBRARYNAME", names.as_bytes()];
    let Value::Array(libraries) = ask(stream, endpoint, &list).await? else { return Ok(()) };
    let others: Vec<_> = libraries.into_iter().filter_map(name_of_other_version).collect();
    if others.len() < VERSIONS {
        return Ok(());
    }
    for name in &others {
        // Without the right to it they stay.
        ask(stream, endpoint, &[b"FUNCTION", b"DELETE", name]).await?;
    }
    Ok(())
}

/// Reads the name of a listed library; `None` if that is no other version of ours.
fn name_of_other_version(library: Value) -> Option<Vec<u8>> {
    // `library_name`, the name, and what we do not need.
    let Value::Array(fields) = library else { return None };
    let Some(Value::BulkString(name)) = fields.into_iter().nth(1) else { return None };
    PROGRAM.is_other_version(&name).then_some(name)
}
