//! The text that decides on the server: the Lua modules of `algorithm`, put together.

use super::wire;
use std::fmt::Write;

/// A module by its name, and its text.
struct Module {
    path: &'static str,
    text: &'static str,
}

macro_rules! modules {
    ($($path:literal),* $(,)?) => {
        [$(Module { path: $path, text: include_str!(concat!("../../algorithm/", $path, ".lua")) }),*]
    };
}

/// The modules, in any order: each is made when another one first names it.
const MODULES: [Module; 30] = modules![
    "calendar_window",
    "call",
    "common",
    "concurrency",
    "concurrency/waiters",
    "entries",
    "epoch",
    "fair/queue",
    "fair/queue/bookings",
    "fair/queue/free_permits",
    "fair/steps",
    "fair/stored",
    "fair/turns",
    "fixed_window",
    "gate",
    "leaky_bucket",
    "replies",
    "reserve",
    "reserve/adjust",
    "reserve/way",
    "sliding_window",
    "sliding_window/state",
    "state",
    "timeline",
    "timeline/conversion",
    "timeline/credit",
    "timeline/holes",
    "token_bucket",
    "token_bucket/block",
    "warm_up",
];

/// Returns the text of all modules and of `require`, which makes them by their names, such as `fair.queue`. `entries` is the
/// one that executes a call.
pub(super) fn text() -> String {
    let mut text = "local texts, made = {}, {}\n\
        local function require(name)\n  \
          local module = made[name]\n  \
          if module == nil then\n    \
            module = texts[name]()\n    \
            made[name] = module\n  \
          end\n  \
          return module\n\
        end\n"
        .to_owned();
    let mut add = |name: &str, module: &str| {
        // Servers read and keep the text: without comments it is a fifth shorter.
        let is_code = |line: &&str| !line.is_empty() && !line.trim_start().starts_with("--");
        let lines: String = module.lines().filter(is_code).flat_map(|line| [line, "\n"]).collect();
        // Writing into a `String` does not fail.
        let _ = write!(text, "texts['{name}'] = function()\n{lines}end\n");
    };
    for Module { path, text } in MODULES {
        add(&path.replace('/', "."), text);
    }
    add("wire", &wire::module());
    text
}
