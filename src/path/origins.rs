//! Which readings of a path are possible, from the settings that the configuration makes about its origins under `paths`.

use super::{
    difference::{
        ALL, Differences, FOLD, Look, NEWLINE, NUL, SEGMENTS, SLASH, TRAILING, UNRESOLVED,
        differences, look,
    },
    reading::{fold, read},
};
use std::borrow::Cow;

/// How the origins of the gateway read a path. A difference that the configuration does not decide is tried both ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paths {
    /// Differences from the plain normal form that every reading has, such as a folded case with `fold_case: on`.
    always: Differences,
    /// Differences that a reading may have or not, because the configuration does not decide them.
    maybe: Differences,
    /// Every reading strips dots and spaces (`trailing_dots: strip`), either at the end of the path or of each segment.
    pub(super) strips: bool,
}

// === impl Paths ===

impl Default for Paths {
    fn default() -> Self {
        Self::new(None, None, None)
    }
}

impl Paths {
    /// Makes the set of readings from three settings; `None` means that the configuration does not decide.
    ///
    /// `separates`: an escaped slash separates segments, otherwise it is data. `folds`: upper and lower case are the same.
    /// `strips`: dots and spaces at the end of a path or segment are cut off.
    pub fn new(separates: Option<bool>, folds: Option<bool>, strips: Option<bool>) -> Self {
        let bits = |known: Option<bool>, wanted: Option<bool>, bits| {
            if known == wanted { bits } else { 0 }
        };
        let unknown = bits(separates, None, SLASH) | bits(folds, None, FOLD);
        let strips_maybe = if strips == Some(false) { 0 } else { TRAILING };
        let known = ALL & !(SLASH | FOLD | TRAILING);
        Self {
            always: bits(separates, Some(true), SLASH) | bits(folds, Some(true), FOLD),
            maybe: known | unknown | strips_maybe,
            strips: strips == Some(true),
        }
    }

    /// Adds the readings of origins that leave dot segments as they are. Routes for whole paths need them: only such origins
    /// serve `/search/../free` by what they have for `/search/{*rest}`.
    #[must_use]
    pub fn with_dot_segments(self) -> Self {
        Self { maybe: self.maybe | UNRESOLVED, ..self }
    }

    /// Returns the path in the normal form of these origins, which is in small letters with `fold_case: on`.
    pub fn normal<'p, P: AsRef<[u8]> + ?Sized>(&self, path: &'p P) -> Cow<'p, [u8]> {
        self.normal_with(path.as_ref(), self.own())
    }

    /// Returns the normal form, and `true` if no origin reads the path in another way.
    pub fn read<'p>(&self, path: &'p str) -> (Cow<'p, [u8]>, bool) {
        let bytes = path.as_bytes();
        match look(bytes) {
            Look::Plain => (Cow::Borrowed(bytes), true),
            Look::Cased if self.folds() => (Cow::Owned(fold(bytes)), true),
            Look::Cased => (Cow::Borrowed(bytes), !self.may_fold()),
            Look::Odd => (Cow::Owned(read(bytes, self.own())), false),
        }
    }

    /// Returns the path as keys of limiters contain it: one form for all spellings that an origin may treat as one. Only an
    /// escaped slash stays data, unless `encoded_slash: separator` is set.
    pub fn key_form<'p, P: AsRef<[u8]> + ?Sized>(&self, path: &'p P) -> Cow<'p, [u8]> {
        self.normal_with(path.as_ref(), self.in_keys())
    }

    /// Returns a reading as keys of limiters contain it. A reading may have spaces, which no path of a request has.
    pub fn key_form_of<'p>(&self, reading: &'p [u8]) -> Cow<'p, [u8]> {
        if reading.contains(&b' ') {
            Cow::Owned(read(reading, self.in_keys()))
        } else {
            self.key_form(reading)
        }
    }

    /// The differences between the form that keys have and the plain normal form.
    fn in_keys(&self) -> Differences {
        self.own() | self.maybe & (FOLD | SEGMENTS | NEWLINE | NUL)
    }

    /// Returns the normal form of a reading. It is in small letters if the reading `folds` case.
    pub fn normal_of<'p>(&self, reading: &'p [u8], folds: bool) -> Cow<'p, [u8]> {
        self.normal_with(reading, self.own() | if folds { FOLD } else { 0 })
    }

    fn normal_with<'p>(&self, bytes: &'p [u8], differences: Differences) -> Cow<'p, [u8]> {
        match look(bytes) {
            Look::Plain => Cow::Borrowed(bytes),
            Look::Cased if differences & FOLD == 0 => Cow::Borrowed(bytes),
            Look::Cased => Cow::Owned(fold(bytes)),
            Look::Odd => Cow::Owned(read(bytes, differences)),
        }
    }

    /// The differences between the normal form of these origins and the plain one.
    pub(super) fn own(&self) -> Differences {
        self.always | if self.strips { SEGMENTS } else { 0 }
    }

    /// Lists the readings of a path other than its normal form, each with `true` if case is folded in it. Almost every path
    /// has none. A path that [`Self::is_legible`] accepts has a bounded number of them.
    pub fn readings<'p>(&self, path: &'p str) -> impl Iterator<Item = (Vec<u8>, bool)> + use<'p> {
        let Self { always, maybe, strips } = *self;
        let (bytes, own) = (path.as_bytes(), self.own());
        let of_path = match look(bytes) {
            Look::Plain => 0,
            Look::Cased => FOLD,
            Look::Odd => differences(bytes),
        };
        let varied = of_path & maybe;
        let has_trailing = strips && varied & TRAILING != 0;
        // If nothing in this path is stripped, the normal form is the reading without these differences.
        let own = if has_trailing { own } else { own & !TRAILING };
        (0..=varied)
            .filter(move |reading| reading & !varied == 0)
            .map(move |reading| reading | always)
            .filter(move |reading| *reading != own && !(has_trailing && reading & TRAILING == 0))
            .map(move |reading| (read(bytes, reading), reading & FOLD != 0))
    }

    /// Whether all readings of the path together cost little. Each reading is one more look-up, so a client could otherwise
    /// make one request as expensive as thousands.
    pub fn is_legible(&self, path: &str) -> bool {
        const MOST: usize = 32 << 10;
        const MOST_DIFFERENCES: u32 = 6;
        if look(path.as_bytes()) != Look::Odd {
            return true;
        }
        // Case folding at most doubles the number of readings. Each path with a capital has it, so it does not count.
        let varied = (differences(path.as_bytes()) & self.maybe & !FOLD).count_ones();
        varied <= MOST_DIFFERENCES && path.len() << varied <= MOST
    }

    /// Whether some origins may fold case and others not, because `fold_case` is not set.
    pub fn may_fold(&self) -> bool {
        self.maybe & FOLD != 0
    }

    /// Whether all origins fold case, as `fold_case: on` says.
    pub fn folds(&self) -> bool {
        self.always & FOLD != 0
    }

    /// Lists the keys under `paths` that are not set. Each comes with the part of a path that it decides, with its values, and
    /// with the readings that remain possible when it has the first of them.
    pub fn narrower(&self) -> impl Iterator<Item = (&'static str, &'static str, Self)> {
        let of = *self;
        let keys = [
            ("upper case", "`fold_case: off`, or `on`", FOLD),
            ("an escaped slash", "`encoded_slash: data`, or `separator`", SLASH),
            ("dots or spaces at an end", "`trailing_dots: keep`, or `strip`", TRAILING),
        ];
        keys.into_iter()
            .filter(move |(_, _, bits)| of.maybe & bits != 0 && !(of.strips && *bits == TRAILING))
            .map(move |(what, key, bits)| (what, key, Self { maybe: of.maybe & !bits, ..of }))
    }
}
