//! Words of shell commands in messages for the user.

/// Quotes one word for a shell.
pub fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_special_characters() {
        assert_eq!(quoted("target/release/isolane"), "target/release/isolane");
        assert_eq!(quoted("/my disk's/isolane"), r"'/my disk'\''s/isolane'");
    }
}
