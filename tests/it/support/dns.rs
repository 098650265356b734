//! A DNS server on UDP that says what a test likes.

use parking_lot::Mutex;
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};
use tokio::{net::UdpSocket, task::JoinHandle};

/// A DNS server of the test, which ends together with the test.
#[derive(Debug)]
pub(crate) struct Dns {
    address: SocketAddr,
    says: Arc<Mutex<Says>>,
    asked: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

/// The server's answer for `api.test` and `stack_api`; every other name does not exist.
#[derive(Debug, Clone)]
pub(crate) enum Says {
    /// These addresses, with this time to live in seconds.
    Addresses(Vec<IpAddr>, u32),
    NoSuchName,
    /// SERVFAIL, as of a server whose own servers are away.
    Failure,
    Nothing,
}

impl Dns {
    pub(crate) async fn start(says: Says) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let address = socket.local_addr().expect("its address");
        let (says, asked) = (Arc::new(Mutex::new(says)), Arc::<Mutex<Vec<String>>>::default());
        let (said, log) = (says.clone(), asked.clone());
        let task = tokio::spawn(async move {
            let mut buffer = [0; 4096];
            while let Ok((length, peer)) = socket.recv_from(&mut buffer).await {
                let Some(query) = Query::read(&buffer[..length]) else { continue };
                log.lock().push(query.name.clone());
                let says = said.lock().clone();
                if let Some(answer) = query.answer(&says) {
                    let _ = socket.send_to(&answer, peer).await;
                }
            }
        });
        Self { address, says, asked, task }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the answer to all queries from now on.
    pub(crate) fn say(&self, says: Says) {
        *self.says.lock() = says;
    }

    /// How many questions for `api.test` came so far, two for each lookup.
    pub(crate) fn asked(&self) -> usize {
        self.asked.lock().iter().filter(|name| *name == "api.test").count()
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The one question of a message (RFC 1035 section 4.1.2).
struct Query<'m> {
    id: &'m [u8],
    question: &'m [u8],
    name: String,
    kind: u16,
}

impl<'m> Query<'m> {
    fn read(message: &'m [u8]) -> Option<Self> {
        let (id, rest) = (message.get(..2)?, message.get(12..)?);
        let (mut at, mut labels) = (0, Vec::new());
        loop {
            let length = usize::from(*rest.get(at)?);
            at += 1;
            if length == 0 {
                break;
            }
            labels.push(String::from_utf8_lossy(rest.get(at..at + length)?).to_ascii_lowercase());
            at += length;
        }
        let kind = u16::from_be_bytes(rest.get(at..at + 2)?.try_into().ok()?);
        Some(Self { id, question: rest.get(..at + 4)?, name: labels.join("."), kind })
    }

    fn answer(&self, says: &Says) -> Option<Vec<u8>> {
        let is_known = ["api.test", "stack_api"].contains(&&*self.name);
        let (code, ips, ttl) = match says {
            _ if !is_known => (3, &[][..], 0),
            Says::Nothing => return None,
            Says::NoSuchName => (3, &[][..], 0),
            Says::Failure => (2, &[][..], 0),
            Says::Addresses(ips, ttl) => (0, &ips[..], *ttl),
        };
        // Type A is 1, AAAA is 28.
        let of_kind = |ip: &&IpAddr| if ip.is_ipv4() { self.kind == 1 } else { self.kind == 28 };
        let ips: Vec<_> = ips.iter().filter(of_kind).collect();
        let mut message = self.id.to_vec();
        // An answer, recursion wanted and had, and the code.
        message.extend([0x81, 0x80 | code, 0, 1]);
        message.extend((ips.len() as u16).to_be_bytes());
        message.extend([0; 4]);
        message.extend(self.question);
        for ip in ips {
            // The name of the question.
            message.extend([0xc0, 12]);
            message.extend(self.kind.to_be_bytes());
            message.extend([0, 1]);
            message.extend(ttl.to_be_bytes());
            let bytes = match ip {
                IpAddr::V4(ip) => ip.octets().to_vec(),
                IpAddr::V6(ip) => ip.octets().to_vec(),
            };
            message.extend((bytes.len() as u16).to_be_bytes());
            message.extend(bytes);
        }
        Some(message)
    }
}
