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
    /// Held while the library is loaded; when the server refused it last.
    refused: Mutex<Option<Instant>>,
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
        let functions = Self { server, servers, scripted, loads, refused: Mutex::default() };
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
            Some(_) => {}
            None => functions.servers.forget(&functions.server),
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
        for _ in 0..TRIES {
            let loads = self.functions.loads.load(Relaxed);
            let said = self.call(&call, is_asking).await?;
            let is_loaded = match read_refusal(&said, LibraryRefusal::of_call) {
                None => return Ok(Some(said)),
                // Boxed, so that the future of a call stays small.
                Some(LibraryRefusal::Missing) => Box::pin(self.load(loads)).await?,
                Some(LibraryRefusal::Passing) => false,
                Some(LibraryRefusal::Never(why)) => {
                    self.functions.give_up(Some(&why));
                    false
                }
            };
            if !is_loaded {
                break;
            }
        }
        Ok(None)
    }

    /// Loads the library, unless another call has done so after the first `loads`; returns whether the server has it.
    async fn load(&self, loads: u64) -> Result<bool, StoreError> {
        let mut refused = self.functions.refused.lock().await;
        if self.functions.loads.load(Relaxed) != loads {
            return Ok(true);
        }
        if refused.is_some_and(|refused| refused.elapsed() < RETRY) {
            return Ok(false);
        }
        let said = self.call(&command(&load()), false).await?;
        match read_refusal(&said, LibraryRefusal::of_load) {
            None => {
                self.functions.loads.fetch_add(1, Relaxed);
                return Ok(true);
            }
            Some(LibraryRefusal::Never(why)) => self.functions.give_up(Some(&why)),
            Some(_) => *refused = Some(Instant::now()),
        }
        Ok(false)
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
    if libraries.len() <= VERSIONS {
        return Ok(());
    }
    for library in libraries {
        // `library_name`, the name, and what we do not need.
        if let Value::Array(fields) = library
            && let [_, Value::BulkString(name), ..] = &fields[..]
            && *name != PROGRAM.function.as_bytes()
        {
            // Without the right to it they stay.
            ask(stream, endpoint, &[b"FUNCTION", b"DELETE", name]).await?;
        }
    }
    Ok(())
}
