//! The listening sockets of the process: its own, or those of a supervisor such as systemd (`LISTEN_FDS`), which outlive it.
//! Accepts no connection.

use super::{
    error::{ServerError, system},
    socket::{ensure_free, keep_alive, listen},
};
use crate::config::{Config, Service};
use listenfd::ListenFd;
use std::{
    io,
    net::{SocketAddr, TcpListener},
};

/// The listening sockets of a process.
#[derive(Debug)]
pub(super) struct Listeners {
    pub(super) data: PortSockets,
    pub(super) admin: TcpListener,
    pub(super) services: Vec<(Service, PortSockets)>,
    pub(super) forward: Option<PortSockets>,
}

/// The sockets of one port that workers serve.
#[derive(Debug)]
pub(super) struct PortSockets {
    /// One socket for each worker.
    pub(super) sockets: Vec<TcpListener>,
    /// A supervisor keeps them open. Connections that this process does not accept wait for the next one, so that a restart
    /// refuses none.
    pub(super) are_inherited: bool,
}

// === impl Listeners ===

impl Listeners {
    /// Takes the sockets that a supervisor has opened, and opens the others. A supervisor's socket with the address of
    /// `admin`, of a service or of the forward proxy is theirs; the others are those of clients, and replace `listen`.
    ///
    /// # Errors
    ///
    /// [`ServerError::Listen`] if an address is in use, [`ServerError::System`] if a supervisor has passed something else
    /// than listening TCP sockets, or more of them than there are workers.
    pub(super) fn open(config: &Config) -> Result<Self, ServerError> {
        let (mut clients, mut admin) = (Vec::new(), None);
        let services = config.services.all();
        let mut services: Vec<_> =
            services.map(|(own, port)| (own, port.listen, Vec::new())).collect();
        let mut forward = config.forward.as_ref().map(|own| (own.listen, Vec::new()));
        for socket in inherited().map_err(system)? {
            let address = socket.local_addr().map_err(system)?;
            let of_service = services.iter_mut().find(|(_, listen, _)| *listen == address);
            if let Some((_, own)) = forward.as_mut().filter(|(listen, _)| *listen == address) {
                own.push(socket);
                continue;
            }
            match (address == config.admin.listen, of_service) {
                (true, _) => admin = Some(socket),
                (false, Some((_, _, own))) => own.push(socket),
                (false, None) => clients.push(socket),
            }
        }
        let failed = |address, key| {
            move |error| ServerError::Listen { address, key, source: with_cure(error, key) }
        };
        let workers = config.workers.get();
        let port = |key, address, inherited: Vec<TcpListener>| {
            let are_inherited = !inherited.is_empty();
            let sockets = if are_inherited {
                shared(&inherited, workers).map_err(system)?
            } else {
                own(address, workers).map_err(failed(address, key))?
            };
            Ok::<_, ServerError>(PortSockets { sockets, are_inherited })
        };
        let data = port("listen", config.listen, clients)?;
        let services = services.into_iter().map(|(service, address, inherited)| {
            Ok::<_, ServerError>((service, port(service.key(), address, inherited)?))
        });
        let services = services.collect::<Result<_, _>>()?;
        let forward = forward.map(|(listen, inherited)| port("forward.listen", listen, inherited));
        let forward = forward.transpose()?;
        let admin = match admin {
            Some(admin) => admin,
            None => {
                listen(config.admin.listen, false).map_err(failed(config.admin.listen, "admin"))?
            }
        };
        Ok(Self { data, admin, services, forward })
    }
}

/// Completes the error of an address that is in use by what to do about it.
fn with_cure(error: io::Error, key: &str) -> io::Error {
    if error.kind() != io::ErrorKind::AddrInUse {
        return error;
    }
    let why = format!("{error}; another program listens there: stop it, or choose another `{key}`");
    io::Error::new(io::ErrorKind::AddrInUse, why)
}

/// The listening sockets that a supervisor has passed to this process, in its order.
fn inherited() -> io::Result<Vec<TcpListener>> {
    let mut passed = ListenFd::from_env();
    let mut sockets = Vec::with_capacity(passed.len());
    for i in 0..passed.len() {
        if let Some(socket) = passed.take_tcp_listener(i)? {
            socket.set_nonblocking(true)?;
            keep_alive(&socket)?;
            sockets.push(socket);
        }
    }
    Ok(sockets)
}

/// A socket for each of so many workers. Several workers accept from one socket of the supervisor; each socket has one at
/// least, or its clients would wait for ever.
fn shared(sockets: &[TcpListener], workers: usize) -> io::Result<Vec<TcpListener>> {
    if sockets.len() > workers {
        let why = format!(
            "{} sockets were passed for clients (LISTEN_FDS), but there are {workers} workers: set `workers` to {} or more",
            sockets.len(),
            sockets.len()
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    sockets.iter().cycle().take(workers).map(TcpListener::try_clone).collect()
}

/// Opens a socket for each worker on the port of `address`.
fn own(address: SocketAddr, workers: usize) -> io::Result<Vec<TcpListener>> {
    // With `SO_REUSEPORT` two processes can listen on one port, and each gets a part of the clients.
    ensure_free(address)?;
    let first = listen(address, true)?;
    let address = first.local_addr()?;
    let mut all = vec![first];
    for _ in 1..workers {
        all.push(listen(address, true)?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{error::Error as _, path::Path};

    #[test]
    fn an_address_in_use_is_reported_with_the_remedy() {
        let taken = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let address = taken.local_addr().expect("an address");
        let text = format!("listen: {address}\nupstream: http://a\nroutes: [{{ suffix: '*' }}]\n");
        let config =
            Config::parse(&text, "test.yaml", Path::new("."), &|_| None).expect("a config");
        let error = Listeners::open(&config).expect_err("it is in use");
        assert_eq!(error.to_string(), format!("cannot listen on {address} (`listen`)"));
        let why = error.source().expect("a source").to_string();
        let cure = "; another program listens there: stop it, or choose another `listen`";
        assert!(why.starts_with("Address already in use") && why.ends_with(cure), "{why}");
    }
}
