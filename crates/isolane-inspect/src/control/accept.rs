//! Choice of the format of metrics by the `Accept` header of a request.

use crate::metrics::Exposition;

/// Parameters of the messages that we send.
const MESSAGES: [(&str, &str); 2] =
    [("proto", "io.prometheus.client.MetricFamily"), ("encoding", "delimited")];

/// Returns the format that the values of a header accept. It is protobuf only if the header names it, and prefers no
/// text.
pub fn accepted<'a>(values: impl Iterator<Item = &'a str>) -> Exposition {
    let (mut protobuf, mut text) = (0.0_f64, 0.0_f64);
    for range in values.flat_map(|value| value.split(',')) {
        let mut parts = range.split(';');
        let media_type = parts.next().unwrap_or_default().trim().to_ascii_lowercase();
        let parameters: Vec<(String, &str)> = parts.filter_map(parameter).collect();
        let find = |wanted: &str| parameters.iter().find(|(name, _)| name == wanted).map(|(_, value)| *value);
        let quality: f64 = find("q").map_or(1.0, |text| text.parse().unwrap_or(0.0));
        let has = |(name, value): (&str, &str)| find(name) == Some(value);
        match media_type.as_str() {
            "application/vnd.google.protobuf" if MESSAGES.into_iter().all(has) => {
                protobuf = quality.max(protobuf);
            }
            "application/openmetrics-text" => text = quality.max(text),
            _ => {}
        }
    }
    if protobuf > 0.0 && protobuf >= text { Exposition::Protobuf } else { Exposition::Text }
}

fn parameter(text: &str) -> Option<(String, &str)> {
    let (name, value) = text.split_once('=')?;
    Some((name.trim().to_ascii_lowercase(), value.trim().trim_matches('"')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_protobuf_only_if_preferred() {
        let messages =
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
        let text = "application/openmetrics-text;version=1.0.0";
        for (header, expected) in [
            (format!("{messages},{text};q=0.8,*/*;q=0.1"), Exposition::Protobuf),
            (format!("{text};q=0.5 , {messages} ; Q=\"0.6\""), Exposition::Protobuf),
            (messages.to_owned(), Exposition::Protobuf),
            (format!("{messages};q=0.4,{text};q=0.5"), Exposition::Text),
            (format!("{messages};q=0"), Exposition::Text),
            (format!("{messages};q=x"), Exposition::Text),
            (messages.replace("delimited", "text"), Exposition::Text),
            ("application/vnd.google.protobuf".to_owned(), Exposition::Text),
            ("*/*".to_owned(), Exposition::Text),
            (",;=,q=;;".to_owned(), Exposition::Text),
            (String::new(), Exposition::Text),
        ] {
            assert_eq!(accepted([header.as_str()].into_iter()), expected, "{header}");
        }
        assert_eq!(accepted([text, messages].into_iter()), Exposition::Protobuf, "two headers");
    }
}
