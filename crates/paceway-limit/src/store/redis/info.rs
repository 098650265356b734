//! Reads the reply to `INFO`, in which a server describes itself.

/// The lines of a reply to `INFO`, such as `redis_version:7.0.15`.
pub(super) struct Info<'t>(&'t [u8]);

// === impl Info ===

impl<'t> Info<'t> {
    pub(super) fn new(text: &'t [u8]) -> Self {
        Self(text)
    }

    /// Returns the value of a name; `None` if no line has that name or the value is no UTF-8.
    pub(super) fn get(&self, name: &str) -> Option<&'t str> {
        let mut lines = self.0.split(|byte| *byte == b'\n');
        let value =
            lines.find_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b":"))?;
        Some(std::str::from_utf8(value).ok()?.trim())
    }

    /// Returns the value of a name as a number; `None`, too, if it is none.
    pub(super) fn number(&self, name: &str) -> Option<i64> {
        self.get(name)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::first("a:1\r\nb:2\r\n", Some("1"))]
    #[case::behind_a_heading("# Server\r\n\r\nb:2\r\na: x \r\n", Some("x"))]
    #[case::without_an_end("b:2\r\na:1", Some("1"))]
    #[case::empty("a:\r\n", Some(""))]
    #[case::not_said("b:2\r\n", None)]
    #[case::of_a_longer_name("aa:1\r\nxa:1\r\n", None)]
    #[case::nothing("", None)]
    fn reads_the_value_of_a_name(#[case] text: &str, #[case] value: Option<&str>) {
        assert_eq!(Info::new(text.as_bytes()).get("a"), value);
    }

    #[test]
    fn values_that_are_not_text_are_ignored() {
        assert_eq!(Info::new(b"a:\xff\xfe\r\n").get("a"), None);
    }
}
