//! The media types whose bodies are JSON documents. Reads no body.

/// Whether a content type is that of a JSON document, whatever its parameters: a word of its subtype is `json`, as in
/// `application/problem+json` or `application/x-amz-json-1.1`. Rows of documents, such as `application/json-seq`, are none.
pub fn is_json(content_type: &[u8]) -> bool {
    let essence = content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let Some(slash) = essence.iter().position(|byte| *byte == b'/') else { return false };
    let mut words = essence[slash + 1..].split(|byte| b"+-._".contains(byte));
    let is = |word: &[u8], name: &str| word.eq_ignore_ascii_case(name.as_bytes());
    words.clone().any(|word| is(word, "json"))
        && !words.any(|word| is(word, "seq") || is(word, "stream"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    #[rstest]
    #[case("application/json", true)]
    #[case("application/json; charset=utf-8", true)]
    #[case("Application/Problem+JSON", true)]
    #[case("text/json ;x=y", true)]
    #[case::amazon("application/x-amz-json-1.1", true)]
    #[case::amazon_in_capitals("APPLICATION/X-AMZ-JSON-1.0; charset=UTF-8", true)]
    #[case::google("application/json+protobuf", true)]
    #[case::github("application/vnd.github.v3+json", true)]
    #[case::of_a_vendor("application/vnd.vendor.json", true)]
    #[case("text/x-json", true)]
    #[case("application/x-www-form-urlencoded", false)]
    #[case("application/jsonl", false)]
    #[case("application/x-ndjson", false)]
    #[case::a_row_of_documents("application/json-seq", false)]
    #[case::a_stream_of_documents("application/stream+json", false)]
    #[case("text/plain; a=application/json", false)]
    #[case("json", false)]
    #[case("", false)]
    fn reads_types_with_the_word_json_as_json(#[case] content_type: &str, #[case] expected: bool) {
        assert_eq!(super::is_json(content_type.as_bytes()), expected);
    }
}
