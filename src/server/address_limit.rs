//! How many connections one client address may have at one time, over all workers. A connection beyond the limit gets 503 and
//! no permit.

use ahash::RandomState;
use parking_lot::Mutex;
use std::{
    collections::{HashMap, hash_map::Entry},
    net::{IpAddr, Ipv6Addr},
    num::NonZeroUsize,
    sync::Arc,
};

/// The bits of an IPv6 address that name a network: one host has all addresses below them.
const NETWORK: u128 = !0 << 64;

/// The open connections of each client address. Each entry has a connection, so that `max_connections` bounds their number.
#[derive(Debug, Default)]
pub(super) struct AddressLimit(Mutex<HashMap<IpAddr, usize, RandomState>>);

/// The right of one connection of an address; it is released on drop.
#[derive(Debug)]
pub(super) struct AddressPermit {
    limit: Arc<AddressLimit>,
    address: IpAddr,
}

/// An address has as many connections as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooManyOfAddress;

// === impl AddressLimit ===

impl AddressLimit {
    /// Takes a permit for a connection of `address`, which may have `most` at one time.
    pub(super) fn acquire(
        self: &Arc<Self>,
        address: IpAddr,
        most: NonZeroUsize,
    ) -> Result<AddressPermit, TooManyOfAddress> {
        let address = counted_as(address);
        let mut open = self.0.lock();
        let count = open.entry(address).or_default();
        if *count >= most.get() {
            return Err(TooManyOfAddress);
        }
        *count += 1;
        Ok(AddressPermit { limit: self.clone(), address })
    }
}

/// The address under which connections are counted: all addresses of an IPv6 network of 64 bits are one.
fn counted_as(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & NETWORK)),
        ip => ip,
    }
}

// === impl AddressPermit ===

impl Drop for AddressPermit {
    fn drop(&mut self) {
        if let Entry::Occupied(mut open) = self.limit.0.lock().entry(self.address) {
            *open.get_mut() -= 1;
            if *open.get() == 0 {
                open.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_limited_and_forgotten_after_its_last_connection() {
        let limit = Arc::<AddressLimit>::default();
        let most = NonZeroUsize::new(2).unwrap();
        let acquire = |address: &str| limit.acquire(address.parse().unwrap(), most);
        for (addresses, other) in [
            (["192.0.2.1", "::ffff:192.0.2.1", "192.0.2.1"], "192.0.2.2"),
            (["2001:db8::1", "2001:db8::2:1", "2001:db8::3"], "2001:db8:0:1::1"),
        ] {
            let held = [acquire(addresses[0]).unwrap(), acquire(addresses[1]).unwrap()];
            assert_eq!(acquire(addresses[2]).unwrap_err(), TooManyOfAddress);
            assert!(acquire(other).is_ok());
            drop(held);
            assert!(acquire(addresses[2]).is_ok());
        }
        assert!(limit.0.lock().is_empty());
    }
}
