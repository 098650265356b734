//! The wire between a gateway and the library: what an entry of a call consists of. One table, from which the gateway
//! writes entries and the library reads them (its module `wire`, which `modules.rs` adds). `entries.lua` describes a
//! call, `replies.lua` its reply.

use std::fmt::Write;

/// The parts of an entry besides its limiters.
#[derive(Debug)]
pub(super) struct EntryForm {
    pub(super) letter: u8,
    /// The function of `entries.lua` that executes it.
    step: &'static str,
    /// The numbers of the entry, as the function names them.
    pub(super) numbers: &'static [&'static str],
    /// Its text, which comes after the numbers.
    pub(super) text: Option<&'static str>,
}

const fn form(
    letter: u8,
    step: &'static str,
    numbers: &'static [&'static str],
    text: Option<&'static str>,
) -> EntryForm {
    EntryForm { letter, step, numbers, text }
}

/// Replies: the code 1 with `at retry_after bound remaining next reset_after`, and for each limiter `at whole ticks born aux`;
/// 0 with the first six for a request that is refused; 2 with these, `deadline` and `ask_after` for one that waits for a
/// concurrency permit. The code is 10 more for a limiter with a gate, and `paused rate since status` come after
/// `reset_after`.
pub(super) const RESERVE: EntryForm = form(b'D', "reserve", &["budget"], None);
/// A deadline of -1: the request holds a permit already, which an observing limiter counts. Replies as [`RESERVE`].
pub(super) const RESERVE_WITH_TICKET: EntryForm =
    form(b'T', "reserve_with_ticket", &["budget", "gateway", "number", "deadline"], None);
/// A request that takes turns at the `at`-th of its limiters. Replies as [`RESERVE`]; the part of that limiter is
/// `wait number 0 -1 0` if the request waits for its turn.
pub(super) const RESERVE_IN_TURN: EntryForm =
    form(b'Q', "reserve_in_turn", &["budget", "gateway", "number", "deadline", "at"], None);
/// A request that can be made in several ways: `ways` has for each how many of the limiters are its own, and how late the slots of those
/// before have to be at least. Without a ticket the last four numbers mean nothing. Replies the number of the way, from 0, and as
/// [`RESERVE_IN_TURN`] with its limiters.
pub(super) const CHOOSE: EntryForm =
    form(b'A', "choose", &["budget", "has_ticket", "gateway", "number", "deadline"], Some("ways"));
/// Requests for the same cost of one token bucket; their budgets are absent where all are equal. Replies 1 with `admitted`, and
/// `tail` and `born` of the bucket before; or 0, and then as [`RESERVE`] for each request.
pub(super) const RESERVE_ALIKE: EntryForm =
    form(b'S', "reserve_alike", &["requests", "least"], Some("budgets"));
/// The same with a block for the requests after this one. Replies as [`RESERVE`], then for how long the first permit of the
/// block can be used, µs; -1 without a block.
pub(super) const RESERVE_BLOCK: EntryForm =
    form(b'B', "reserve_block", &["budget", "requests", "reach", "jump"], None);
/// Other permits in place of those that the request has: `at whole ticks born aux` for each limiter. Replies as [`RESERVE`]; 0 if
/// the request keeps its permits.
pub(super) const MOVE_UP: EntryForm = form(b'U', "move_up", &["budget"], Some("grants"));
/// Replies as [`RESERVE_IN_TURN`].
pub(super) const CONFIRM: EntryForm = form(b'C', "confirm", &["at", "number"], None);
/// Replies 1; 0 if it did not wait.
pub(super) const LEAVE: EntryForm = form(b'V', "leave", &["at", "number"], None);
/// The tenants of the queue whose first key has this number. Replies their number, and for each `class weight waiting granted lead`;
/// its name is among the texts.
pub(super) const TENANTS: EntryForm = form(b'N', "tenants", &["queue", "horizon"], None);
/// Replies 1; 0 if there was no such grant; 2 if a waiter was notified.
pub(super) const REFUND: EntryForm = form(b'G', "refund", &["whole", "ticks", "born", "aux"], None);
/// Permits that were used already. Replies 1, and how many of them the state does not take yet.
pub(super) const CHARGE: EntryForm = form(b'K', "charge", &[], None);
/// Replies 1; 0 if the lease has expired.
pub(super) const RENEW: EntryForm = form(b'R', "renew", &["gateway", "number"], None);
/// Replies 1; 0 if there was no state.
pub(super) const FORGET: EntryForm = form(b'X', "forget", &[], None);
/// Replies 1 with `remaining next reset_after`, and those of a gate as [`RESERVE`].
pub(super) const LOOK: EntryForm = form(b'P', "look", &[], None);
/// A pause of `span` µs, because a call that was sent `ago` µs ago was refused; the rate stays where `unit` is 0. Replies as
/// [`LOOK`].
pub(super) const PAUSE: EntryForm = form(b'Z', "pause", &["span", "status", "unit", "ago"], None);
/// At most so many permits remain, for `span` µs; 0: of those that can be taken now. Replies as [`LOOK`].
pub(super) const LOWER: EntryForm = form(b'M', "lower", &["most", "waiting", "next", "span"], None);

/// A reply to any entry instead: one of its keys holds a foreign value. The number of the key follows.
pub(super) const FOREIGN: i64 = -1;
/// The code of a reply is greater by this if its limiter has a gate: then the level has four more numbers.
pub(super) const GATED: i64 = 10;

const FORMS: [&EntryForm; 17] = [
    &RESERVE,
    &RESERVE_WITH_TICKET,
    &RESERVE_IN_TURN,
    &CHOOSE,
    &RESERVE_ALIKE,
    &RESERVE_BLOCK,
    &MOVE_UP,
    &CONFIRM,
    &LEAVE,
    &TENANTS,
    &REFUND,
    &CHARGE,
    &RENEW,
    &FORGET,
    &LOOK,
    &PAUSE,
    &LOWER,
];

/// Returns the text of the library's module `wire`: for each letter the step, the form in which `struct.unpack` reads the numbers
/// and the text, and the bytes of the numbers; and the codes of replies.
pub(super) fn module() -> String {
    let mut text = format!("return {{\n  FOREIGN = {FOREIGN}, GATED = {GATED},\n");
    for EntryForm { letter, step, numbers, text: own } in FORMS {
        let letter = char::from(*letter);
        let form = "d".repeat(numbers.len()) + if own.is_some() { "dc0" } else { "" };
        // Writing into a `String` does not fail.
        let _ = writeln!(
            text,
            "  {letter} = {{ step = '{step}', form = '<{form}', size = {}, has_text = {} }},",
            8 * numbers.len(),
            own.is_some()
        );
    }
    text + "}\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRIES: &str = include_str!("../../algorithm/entries.lua");

    #[test]
    fn each_entry_has_a_letter_and_a_step_of_its_own_that_names_its_numbers() {
        for (i, form) in FORMS.iter().enumerate() {
            assert!(FORMS[..i].iter().all(|other| other.letter != form.letter), "{form:?}");
            let named = form.numbers.iter().chain(&form.text).map(|name| format!(", {name}"));
            let wanted = format!("function steps.{}(", form.step);
            let (_, after) = ENTRIES.split_once(&wanted).expect(form.step);
            let (names, _) = after.split_once(')').expect("parameters");
            let names = names.trim_start_matches(|c: char| c != ',');
            assert_eq!(names, named.collect::<String>(), "{}", form.step);
        }
    }
}
