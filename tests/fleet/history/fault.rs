//! A fault of a history: of the network, the store or a gateway. Decides nothing.

use super::{MS, Micros, choice};
use fastrand::Rng;
use paceway::{limit::micros, store::GONE};
use std::ops::Range;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) at: Micros,
    pub(crate) lasts: Micros,
    pub(crate) what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// No message passes between this gateway and the store, while their connections stay open.
    Silence(usize),
    /// The connections of this gateway to the store end, and it can make no other until the fault ends.
    Cut(usize),
    /// The machine of this gateway stalls: its tasks do not run, and its timers fire late.
    Stall(usize),
    /// The gateway is killed with `kill -9`, and started again when the fault ends.
    Crash(usize),
    /// The gateway is stopped with SIGTERM, and started again when the fault ends.
    Leave(usize),
    /// The gateway lives for the first time, in µs, and is dead for the second one, again and again.
    Loop(usize, Micros, Micros),
    /// The machine of the store stalls: it answers all calls when the fault ends.
    Freeze,
    /// The store ends, loses its data, and starts again when the fault ends.
    Restart,
    /// An operator runs `FLUSHALL` on the store, which loses the set of gateways, too.
    Flush,
    /// A replica takes over that has not received the writes of this many last µs.
    Failover(Micros),
    /// The store's clock is set by this many µs, forward or back, as a time daemon might do.
    Step(Micros),
}

// === impl Fault ===

impl Fault {
    pub(super) fn draw(rng: &mut Rng, gateways: usize, within: Range<Micros>) -> Self {
        let (at, gateway) = (rng.i64(within), rng.usize(0..gateways));
        let what = match rng.u8(0..12) {
            0..2 => What::Silence(gateway),
            2 => What::Cut(gateway),
            3 => What::Stall(gateway),
            4 => What::Crash(gateway),
            5 => What::Leave(gateway),
            6..8 => What::Freeze,
            8 => What::Restart,
            9 => What::Flush,
            10 => What::Failover(rng.i64(0..500) * MS),
            _ => What::Step(*choice(rng, &[-3000, -200, 200, 3000]) * MS),
        };
        let lasts = match what {
            What::Flush | What::Step(_) => 0,
            What::Stall(_) => *choice(rng, &[120, 600, 2500, 2500]) * MS,
            _ => *choice(rng, &[30, 120, 600, 2500, 6000, 6000]) * MS,
        };
        Self { at, lasts, what }
    }
}

impl Fault {
    pub(crate) fn end(&self) -> Micros {
        match self.what {
            // Until then the others may leave the gateway its share.
            What::Crash(_) | What::Leave(_) => self.at + self.lasts.max(micros(GONE)),
            What::Loop(..) => self.at + self.lasts + micros(GONE),
            _ => self.at + self.lasts,
        }
    }
}

// === impl What ===

impl What {
    pub(crate) fn ends_a_gateway(self) -> bool {
        matches!(self, Self::Crash(_) | Self::Leave(_) | Self::Loop(..))
    }

    /// Whether the store forgets which gateways there are.
    pub(super) fn loses_the_set(self) -> bool {
        matches!(self, Self::Restart | Self::Flush | Self::Failover(_))
    }

    /// The gateway that the fault concerns; `None` if it concerns the store or all gateways.
    pub(crate) fn gateway(self) -> Option<usize> {
        match self {
            Self::Silence(one) | Self::Cut(one) | Self::Stall(one) => Some(one),
            Self::Crash(one) | Self::Leave(one) | Self::Loop(one, ..) => Some(one),
            Self::Freeze | Self::Restart | Self::Flush | Self::Failover(_) | Self::Step(_) => None,
        }
    }
}
